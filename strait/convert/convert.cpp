#include "strait/convert/convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/retention.h"
#include "strait/convert/hugging_face.h"
#include "strait/convert/model_state.h"
#include "strait/shape/modules.h"
#include "strait/tokenizer/utf8.h"

namespace strait::convert {
namespace {

constexpr const char* kCheckpoint = "checkpoint";
constexpr const char* kSingleFile = "safetensors";
constexpr const char* kHuggingFace = "hf";
constexpr std::array kForms = {kCheckpoint, kSingleFile, kHuggingFace};
/// What --to takes; the last two are made from data.
constexpr std::array kNamed = {kCheckpoint, kSingleFile, kHuggingFace, "llm.c", "megatron"};
constexpr std::string_view kEnding = ".safetensors";

[[noreturn]] void refuse(const std::string& path, const std::string& message,
                         const char* key = nullptr) {
  ErrorPlace place;
  place.file = path;
  if (key != nullptr) place.key = key;
  throw UserError(message, place);
}

/// "" when it is none.
std::string form_or_none(const std::string& from) {
  if (from.ends_with(kEnding) && is_regular_file(from)) return kSingleFile;
  if (path_exists(from + "/manifest.json") || is_folder(from + "/checkpoints") ||
      checkpoint::names_best(from))
    return kCheckpoint;
  for (const char* name : {"/config.json", "/model.safetensors", "/model.safetensors.index.json"})
    if (path_exists(from + name)) return kHuggingFace;
  return "";
}

std::string form_of(const std::string& from) {
  const std::string form = form_or_none(from);
  if (!form.empty()) return form;
  refuse(from, fmt::format("{} is {}", from,
                           path_exists(from)
                               ? "neither a checkpoint, nor a run folder, nor a .safetensors "
                                 "file, nor a Hugging Face folder with config.json"
                               : "not there"));
}

std::string wanted_form(const std::string& from_form, const std::string& to,
                        const std::string& form) {
  const bool file = to.ends_with(kEnding);
  if (form.empty())
    return file ? kSingleFile : from_form == kCheckpoint ? kHuggingFace : kCheckpoint;
  if (file != (form == kSingleFile))
    refuse(to,
           fmt::format("{} {}, but --to {} writes {}", to,
                       file ? "ends with .safetensors" : "does not end with .safetensors", form,
                       file ? "a folder" : "a file of that ending"),
           "--to");
  return form;
}

void check_form(const std::string& to, const std::string& form) {
  if (form.empty() || std::find(kForms.begin(), kForms.end(), form) != kForms.end()) return;
  refuse(to,
         fmt::format("--to {} is unknown; the nearest is {} ({})", form,
                     nearest_choice(form, kNamed), fmt::join(kNamed, ", ")),
         "--to");
}

ModelState read(const std::string& form, const std::string& from, Part part) {
  if (form == kSingleFile) return read_single_file(from, part);
  if (form == kCheckpoint) return read_checkpoint(from, part);
  return read_hugging_face(from);
}

}  // namespace

bool holds_model(const std::string& path) { return !form_or_none(path).empty(); }

Json convert(const std::string& from, const std::string& to, const std::string& form) {
  check_form(to, form);
  const std::string from_form = form_of(from);
  const std::string to_form = wanted_form(from_form, to, form);
  if (path_exists(to)) refuse(to, fmt::format("{} is already there; name a path that is not", to));
  ModelState state = read(from_form, from, to_form == kHuggingFace ? Part::kWeights : Part::kAll);
  if (state.shape.modules && to_form == kHuggingFace)
    refuse(to,
           fmt::format("{} holds {}, which has no form in Hugging Face's transformers; the nearest "
                       "is --to {}",
                       from, state.shape.modules->from_folder() ? "a chain of modules" : "a U-Net",
                       kSingleFile),
           "--to");
  state.require_finite_weights(from);
  std::vector<checkpoint::FileRecord> files;
  if (to_form == kHuggingFace) {
    files = write_hugging_face(state, to);
    if (from_form != kHuggingFace)
      state.notes.push_back("the state of the optimizer and the position in the data are left out");
  } else if (to_form == kSingleFile) {
    files = write_single_file(state, to);
    for (const auto& [name, contents] : state.companions)
      if (first_invalid_utf8(contents) != contents.size())
        state.notes.push_back(name + " is left out: metadata of a file are text");
  } else {
    files = write_checkpoint(state, to);
  }
  Json listed = Json::array();
  for (const checkpoint::FileRecord& file : files)
    listed.push_back(
        Json::object({{"name", file.name}, {"bytes", file.bytes}, {"hash", file.hash}}));
  return Json::object({{"from", from},
                       {"to", to},
                       {"from_form", from_form},
                       {"to_form", to_form},
                       {"step", state.about.step},
                       {"parameters", state.shape.parameters()},
                       {"parameter_hash", state.parameter_hash()},
                       {"files", listed},
                       {"notes", state.notes}});
}

}  // namespace strait::convert
