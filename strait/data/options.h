// [data] of the run file: where text comes from and how it becomes tokens.
#pragma once

#include <string>

namespace strait {

/// Reserved.
struct CompletionOptions {
  std::string prompt_field, completion_field;
};

struct DataOptions {
  std::string path;  // file or folder of text, JSON-lines, llm.c shards, Megatron pairs;
                     // "synthetic:" (synthetic.h)
  std::string encoding = "utf-8";   // utf-8 | windows-1252 | latin-1
  std::string text_field = "text";  // of JSON-lines: the member that is the text
  std::string tokenizer = "char";   // byte | char | bpe:N | ids:N | path of a tokenizer.json
  double validation_share = 0.1;    // the last part of the text, in [0, 1)
  CompletionOptions completion;     // of JSON-lines
  std::string document_separator;   // "" = one stream
};

/// Whether data.path names data that are made, of no file.
inline bool is_synthetic(const DataOptions& data) { return data.path.starts_with("synthetic:"); }

/// ... and images: every sequence is one, of pixels.
inline bool has_images(const DataOptions& data) {
  return data.path.starts_with("synthetic:images");
}

/// Whether training and evaluation keep documents apart, which synthetic text always has.
inline bool has_documents(const DataOptions& data) {
  return !data.document_separator.empty() || (is_synthetic(data) && !has_images(data));
}

}  // namespace strait
