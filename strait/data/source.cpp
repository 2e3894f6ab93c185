#include "strait/data/source.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/data/json_lines.h"
#include "strait/data/shards/llmc_shard.h"
#include "strait/data/synthetic.h"
#include "strait/data/text.h"
#include "strait/tokenizer/ids_tokenizer.h"
#include "strait/tokenizer/tokenizer.h"

namespace strait {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const DataOptions& options, const std::string& message, const char* key) {
  ErrorPlace place;
  place.file = options.path;
  place.key = key;
  throw UserError(message, place);
}

/// A FIFO, socket or device may never end, nor even begin.
void refuse_special(const DataOptions& options) {
  struct stat status {};
  if (::stat(options.path.c_str(), &status) != 0) return;
  if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) return;
  refuse(options,
         fmt::format("data.path: {} is a {}; name a file or a folder", options.path,
                     file_kind(status.st_mode)),
         "data.path");
}

bool is_pair(const std::string& prefix) {
  return is_regular_file(prefix + ".idx") && is_regular_file(prefix + ".bin");
}

std::string without_ending(const std::string& path) { return path.substr(0, path.size() - 4); }

std::string first_bytes(const std::string& path) {
  std::string bytes(4, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), 4);
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

DataForm form_of(const std::string& path) {
  if (path.ends_with(".idx")) return DataForm::kMegatron;
  if (path.ends_with(".bin"))
    return path_exists(without_ending(path) + ".idx") ? DataForm::kMegatron : DataForm::kLlmc;
  if (is_llmc_shard(first_bytes(path))) return DataForm::kLlmc;
  return is_json_lines(path) ? DataForm::kJsonLines : DataForm::kText;
}

/// By a word of its name, or of the name of a folder below `folder` that it lies in.
bool is_for_validation(const std::string& path, const std::string& folder) {
  std::string name = fs::path(path).lexically_relative(folder).string();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find_first_of("_-./", begin), name.size());
    const std::string word = name.substr(begin, end - begin);
    if (word == "val" || word == "valid" || word == "validation") return true;
    begin = end + 1;
  }
  return false;
}

using ByForm = std::map<DataForm, std::vector<std::string>>;

/// The one form of a folder's files, of which there is one at least.
DataForm single_form(const DataOptions& options, ByForm& found) {
  const auto plain_json = [](const std::string& path) {
    return path.ends_with(".json") || path.ends_with(".json.gz");
  };
  auto& text = found[DataForm::kText];
  auto& json = found[DataForm::kJsonLines];
  const bool only_json = std::all_of(json.begin(), json.end(), plain_json);
  if (!text.empty() && only_json) json.clear();
  std::erase_if(found, [](const auto& entry) { return entry.second.empty(); });
  if (found.size() > 1) {
    const auto first = found.begin(), second = std::next(first);
    refuse(options,
           fmt::format("data.path: the folder {} holds {} ({}) and {} ({}); name one of the files, "
                       "or a folder "
                       "with one form of data",
                       options.path, name_of(first->first), first->second.front(),
                       name_of(second->first), second->second.front()),
           "data.path");
  }
  return found.begin()->first;
}

DataFiles find_in_folder(const DataOptions& options) {
  ByForm found;
  std::vector<std::string> listed = data_files(options.path);
  std::erase_if(listed, [](const std::string& path) {
    return fs::path(path).filename() == "tokenizer.json";
  });
  if (listed.empty())
    refuse(options,
           fmt::format("data.path: the folder {} holds nothing but a tokenizer.json; a folder of "
                       "data holds text, JSON-lines, llm.c shards or Megatron pairs",
                       options.path),
           "data.path");
  for (const std::string& path : listed) found[form_of(path)].push_back(path);
  DataFiles files;
  files.form = single_form(options, found);
  if (files.form == DataForm::kText) {  // .json beside it too
    files.training = std::move(listed);
    return files;
  }
  for (std::string path : found[files.form]) {
    if (files.form == DataForm::kMegatron) path = without_ending(path);
    auto& part = is_for_validation(path, options.path) ? files.validation : files.training;
    if (part.empty() || part.back() != path) part.push_back(path);  // .bin and .idx are neighbours
  }
  if (files.training.empty())
    refuse(
        options,
        fmt::format(
            "data.path: the folder {} holds nothing but validation data ({}); name the file itself "
            "to train on it",
            options.path, files.validation.front()),
        "data.path");
  return files;
}

}  // namespace

const char* name_of(DataForm form) {
  switch (form) {
    case DataForm::kText:
      return "text";
    case DataForm::kJsonLines:
      return "JSON-lines";
    case DataForm::kLlmc:
      return "llm.c shards";
    case DataForm::kMegatron:
      return "Megatron pairs";
    case DataForm::kSynthetic:
      return "synthetic data";
  }
  throw InternalError("a form of data without a name");
}

DataFiles find_data(const DataOptions& options) {
  DataFiles files;
  if (is_synthetic(options)) {
    if (has_images(options))
      parse_images(options.path);
    else
      parse_synthetic(options.path);
    files.form = DataForm::kSynthetic;
    return files;
  }
  refuse_special(options);
  if (is_folder(options.path)) return find_in_folder(options);
  if (!path_exists(options.path)) {
    files.training = {options.path};  // read_text tells what is wrong
    if (!options.path.empty() && is_pair(options.path)) files.form = DataForm::kMegatron;
    return files;
  }
  files.form = form_of(options.path);
  files.training = {files.form == DataForm::kMegatron ? without_ending(options.path)
                                                      : options.path};
  return files;
}

void check_data_options(const DataOptions& options, const DataFiles& files) {
  const DataOptions defaults;
  const bool json = files.form == DataForm::kJsonLines, text = files.form == DataForm::kText;
  const bool synthetic = files.form == DataForm::kSynthetic;
  const auto useless = [&](const char* key, const std::string& value, const std::string& why) {
    refuse(options,
           fmt::format("{} = \"{}\" has no effect on {}: {}", key, value, name_of(files.form), why),
           key);
  };
  if (!json && options.text_field != defaults.text_field)
    useless("data.text_field", options.text_field,
            fmt::format("only JSON-lines have members; leave it at \"{}\"", defaults.text_field));
  if (!text && options.encoding != defaults.encoding)
    useless("data.encoding", options.encoding,
            fmt::format("{}; leave it at \"{}\"",
                        json ? "JSON is UTF-8" : "they are tokens already", defaults.encoding));
  if ((text || json) && names_ids(options.tokenizer))
    useless(
        "data.tokenizer", options.tokenizer,
        "it is for data that are tokens already; choose byte, char, bpe:4096 or a tokenizer.json");
  const bool images = has_images(options);
  if (synthetic && options.document_separator != defaults.document_separator)
    useless("data.document_separator", options.document_separator,
            fmt::format("{}; leave it at \"\"",
                        images ? "images are no documents" : "its documents are known"));
  if (synthetic && !images && options.tokenizer != defaults.tokenizer &&
      !names_ids(options.tokenizer))
    useless("data.tokenizer", options.tokenizer,
            "it has no text; name as many tokens as you want, as in \"ids:50257\"");
  if (images && options.tokenizer != defaults.tokenizer)
    useless("data.tokenizer", options.tokenizer,
            fmt::format("tokens are levels of a color; leave it at \"{}\"", defaults.tokenizer));
  if (!text && !json && tokenizer_is_trained(options.tokenizer))
    useless("data.tokenizer", options.tokenizer,
            "they are tokens already; name the tokenizer.json that they were made with, byte, or "
            "ids:N for N "
            "tokens of which no more is known");
  if (!files.validation.empty() && options.validation_share != defaults.validation_share)
    refuse(
        options,
        fmt::format("data.validation_share = {} has no effect: {} is the validation part; leave it "
                    "at {}, or "
                    "name a folder without validation files",
                    options.validation_share, files.validation.front(), defaults.validation_share),
        "data.validation_share");
}

}  // namespace strait
