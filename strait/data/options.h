// [data] of the run file: where text comes from and how it becomes tokens.
#pragma once

#include <string>

namespace strait {

struct DataOptions {
  std::string path;  // file or folder of text, JSON-lines, llm.c shards, Megatron pairs
  std::string encoding = "utf-8";   // utf-8 | windows-1252 | latin-1
  std::string text_field = "text";  // of JSON-lines: the member that is the text
  std::string tokenizer = "char";   // byte | char | bpe:N | ids:N | path of a tokenizer.json
  double validation_share = 0.1;    // the last part of the text, in [0, 1)
  std::string document_separator;   // "" = one stream
};

}  // namespace strait
