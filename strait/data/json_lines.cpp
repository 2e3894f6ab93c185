#include "strait/data/json_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/json.h"
#include "strait/data/chat.h"
#include "strait/data/gzip.h"
#include "strait/data/shards/mapped_file.h"

namespace strait {
namespace {

/// Takes a line; false ends the reading.
using LineSink = std::function<bool(std::string_view line)>;

/// Calls `sink` with pieces of any size that make up the file, unpacked.
void read_pieces(const MappedFile& file, const ChunkSink& sink) {
  if (is_gzip(file.bytes())) return gunzip_chunks(file.bytes(), file.path(), sink);
  sink(file.bytes());
}

[[noreturn]] void refuse(const std::string& path, int64_t line, const std::string& what,
                         const char* key) {
  ErrorPlace place;
  place.file = path;
  place.line = line;
  place.key = key;
  throw UserError(fmt::format("{}, line {}: {}", path, line, what), place);
}

/// A quarter of a megabyte of gzip may unpack to a line that no memory holds.
void check_length(size_t bytes, const std::string& path, int64_t line) {
  constexpr size_t kLongestLine = size_t{1} << 28;
  if (bytes > kLongestLine)
    refuse(path, line, fmt::format("is longer than {} bytes, the most that is read", kLongestLine),
           "data.path");
}

void read_lines(const MappedFile& file, const LineSink& sink) {
  std::string begun;  // a line whose end has not come
  int64_t number = 1;
  bool more = true;
  read_pieces(file, [&](std::string_view piece) {
    while (more && !piece.empty()) {
      const size_t end = piece.find('\n');
      const std::string_view part = piece.substr(0, end);
      check_length(begun.size() + part.size(), file.path(), number);
      if (end == std::string_view::npos) {
        begun += part;
        break;
      }
      if (begun.empty()) {
        more = sink(part);
      } else {
        begun += part;
        more = sink(begun);
        begun.clear();
      }
      ++number;
      piece.remove_prefix(end + 1);
    }
    return more;
  });
  if (more && !begun.empty()) sink(begun);
}

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

std::string conversation_of(const Json& messages, const std::string& field, const std::string& path,
                            int64_t line) {
  try {
    return chat_text(messages);
  } catch (const UserError& error) {
    refuse(path, line, fmt::format("in the list \"{}\", {}", field, error.what()), "data.path");
  }
}

/// The member that was probably meant.
std::string hint_of(const Json& object, const std::string& field) {
  std::vector<std::string> members;
  for (const auto& [name, value] : object.as_object())
    if (value.is_string() || value.is_array()) members.push_back(name);
  if (members.empty()) return ", nor any other that is a string or a list of messages";
  return fmt::format("; did you mean data.text_field = \"{}\"?", nearest_choice(field, members));
}

std::string text_of(const Json& object, const std::string& field, const std::string& path,
                    int64_t line) {
  if (!object.is_object()) refuse(path, line, "is no JSON object", "data.path");
  const Json* text = object.find(field);
  if (text != nullptr && text->is_string()) return text->as_string();
  if (text != nullptr && text->is_array()) return conversation_of(*text, field, path, line);
  if (text != nullptr)
    refuse(path, line, fmt::format("the member \"{}\" is no string and no list of messages", field),
           "data.text_field");
  refuse(path, line, fmt::format("has no member \"{}\"{}", field, hint_of(object, field)),
         "data.text_field");
}

Json parse_line(std::string_view text, const std::string& path, int64_t line) {
  try {
    return Json::parse(text, "JSON");
  } catch (const UserError& error) {
    refuse(path, line, error.what(), "data.path");
  }
}

}  // namespace

void read_json_lines(const std::string& path, const std::string& field, const DocumentSink& sink) {
  const MappedFile file(path);
  int64_t number = 0;
  read_lines(file, [&](std::string_view line) {
    ++number;
    if (number == 1 && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
    if (blank(line)) return true;
    std::string text = text_of(parse_line(line, path, number), field, path, number);
    if (!text.empty()) sink(std::move(text), number);
    return true;
  });
}

bool is_json_lines(const std::string& path) {
  std::string_view name = path;
  if (name.ends_with(".gz")) name.remove_suffix(3);
  if (name.ends_with(".jsonl") || name.ends_with(".ndjson")) return true;
  if (!name.ends_with(".json")) return false;
  bool object = false;
  read_lines(MappedFile(path), [&](std::string_view line) {
    try {
      object = Json::parse(line, path).is_object();
    } catch (const UserError&) {
      object = false;
    }
    return false;
  });
  return object;
}

}  // namespace strait
