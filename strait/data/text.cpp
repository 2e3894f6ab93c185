#include "strait/data/text.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/process_memory.h"
#include "strait/data/gzip.h"
#include "strait/tokenizer/utf8.h"

namespace strait {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "\xef\xbb\xbf";
constexpr std::array<const char*, 3> kEncodings = {"utf-8", "windows-1252", "latin-1"};

/// Bytes 0x80 to 0x9f of windows-1252, as the WHATWG Encoding Standard's index has them.
constexpr std::array<char16_t, 32> kWindows1252 = {
    0x20ac, 0x0081, 0x201a, 0x0192, 0x201e, 0x2026, 0x2020, 0x2021, 0x02c6, 0x2030, 0x0160,
    0x2039, 0x0152, 0x008d, 0x017d, 0x008f, 0x0090, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022,
    0x2013, 0x2014, 0x02dc, 0x2122, 0x0161, 0x203a, 0x0153, 0x009d, 0x017e, 0x0178};

std::string from_single_bytes(const std::string& bytes, bool windows) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 16);
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    append_utf8(out, windows && byte >= 0x80 && byte < 0xa0 ? kWindows1252[byte - 0x80] : byte);
  }
  return out;
}

std::string checked_utf8(std::string bytes, const std::string& name, bool unpacked) {
  const size_t bad = first_invalid_utf8(bytes);
  if (bad < bytes.size()) {
    const bool utf16 = bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff");
    ErrorPlace place;
    place.file = name;
    place.key = "data.encoding";
    throw UserError(
        fmt::format("{}: byte 0x{:02x} at byte offset {}{} is not UTF-8; {}", name,
                    static_cast<uint8_t>(bytes[bad]), bad, unpacked ? " of the unpacked text" : "",
                    utf16 ? "this looks like UTF-16, convert it to UTF-8 first"
                          : "try data.encoding = \"windows-1252\""),
        place);
  }
  return bytes;
}

const char* kind_of(const std::string& path) {
  struct stat status {};
  ::stat(path.c_str(), &status);
  return file_kind(status.st_mode);
}

UserError path_error(const std::string& message, const std::string& path) {
  ErrorPlace place;
  place.file = path;
  place.key = "data.path";
  return UserError(message, place);
}

/// "; did you mean PATH?" for the sibling with the nearest name, if it is near, or "".
std::string nearest_path(const std::string& path) {
  const fs::path wanted(path);
  const fs::path folder = wanted.has_parent_path() ? wanted.parent_path() : fs::path(".");
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code))
    if (entry->path().filename() != wanted.filename())  // a link to nothing
      names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  if (names.empty()) return "";
  const std::string asked = wanted.filename().string();
  const std::string name = nearest_choice(asked, names);
  if (edit_distance(asked, name) > std::max<int64_t>(2, std::ssize(asked) / 3)) return "";
  return fmt::format("; did you mean {}?",
                     wanted.has_parent_path() ? (folder / name).string() : name);
}

/// " in FOLDER" for a path that begins in the folder of the command.
std::string in_which(const std::string& path) {
  std::error_code code;
  const fs::path folder = fs::current_path(code);
  return code || fs::path(path).is_absolute() ? "" : " in " + folder.string();
}

/// What of a folder is no file and no folder of files: passed over, its text would be missing.
[[noreturn]] void refuse_entry(const std::string& path, const fs::file_status& itself) {
  std::string what;
  if (!fs::is_symlink(itself)) {
    what = fmt::format("is a {}; move it out of the folder of data", kind_of(path));
  } else if (is_folder(path)) {
    what = fmt::format("is a link to a folder, which is not followed; name {} itself, or copy it",
                       fs::read_symlink(path).string());
  } else {
    what = path_exists(path) ? fmt::format("is a link to a {}; remove it", kind_of(path))
                             : std::string("is a link to nothing; remove it");
  }
  throw path_error(fmt::format("data.path: {} {}", path, what), path);
}

void collect_files(const fs::path& folder, std::vector<std::string>& files) {
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    if (entry->path().filename().string().starts_with('.')) continue;
    const std::string path = entry->path().string();
    const fs::file_status itself = entry->symlink_status(code);
    if (code) break;
    if (fs::is_directory(itself)) {
      collect_files(entry->path(), files);
    } else if (is_regular_file(path)) {
      files.push_back(path);
    } else {
      refuse_entry(path, itself);
    }
  }
  if (!code) return;
  ErrorPlace place;
  place.file = folder.string();
  throw InputOutputError(fmt::format("cannot list {}: {}", folder.string(), code.message()), place);
}

/// What of a text may be held: beside the bytes stand a decoded copy and up to four bytes per
/// token.
int64_t most_text_bytes() { return usable_memory_bytes() / 8; }

std::string read_one(const std::string& path, const DataOptions& options) {
  std::error_code none;
  const auto size = static_cast<int64_t>(fs::file_size(path, none));
  if (!none && size > most_text_bytes())
    throw path_error(fmt::format("data.path: the text {} has {} bytes and {} may be held in this "
                                 "memory; strait convert of JSON-lines makes shards that are read "
                                 "where they lie",
                                 path, size, most_text_bytes()),
                     path);
  std::string bytes;
  try {
    bytes = read_file(path);
  } catch (Error& error) {
    error.place().key = "data.path";
    throw;
  }
  return decode_text(std::move(bytes), options.encoding, path);
}

}  // namespace

std::string decode_text(std::string bytes, const std::string& encoding, const std::string& name) {
  if (std::find(kEncodings.begin(), kEncodings.end(), encoding) == kEncodings.end()) {
    ErrorPlace place;
    place.key = "data.encoding";
    throw UserError(
        fmt::format("data.encoding = \"{}\" is not known; did you mean \"{}\"? (choices: "
                    "utf-8, windows-1252, latin-1)",
                    encoding, nearest_choice(encoding, kEncodings)),
        place);
  }
  const bool unpacked = is_gzip(bytes);
  if (unpacked) bytes = gunzip(bytes, name, most_text_bytes());
  if (encoding == "utf-8") return checked_utf8(std::move(bytes), name, unpacked);
  return from_single_bytes(bytes, encoding == "windows-1252");
}

std::vector<std::string> data_files(const std::string& folder) {
  std::vector<std::string> files;
  collect_files(folder, files);
  std::sort(files.begin(), files.end());
  if (files.empty())
    throw path_error(
        fmt::format("data.path: the folder {} holds no files (hidden ones are skipped)", folder),
        folder);
  return files;
}

FilePosition position_in_file(const Text& text, size_t offset, const std::string& encoding) {
  const auto after = std::upper_bound(text.begins.begin(), text.begins.end(), offset);
  FilePosition position;
  position.file = static_cast<size_t>(after - text.begins.begin()) - 1;
  const size_t begin = text.begins[position.file];
  position.offset = offset - begin + text.marks[position.file];
  if (encoding == "utf-8") return position;
  const auto before = std::string_view(text.bytes).substr(begin, offset - begin);
  position.offset = static_cast<size_t>(  // a byte of the file became a character
      std::ranges::count_if(before, [](char c) { return (static_cast<uint8_t>(c) >> 6) != 2; }));
  return position;
}

Text read_text(const DataOptions& options, const std::vector<std::string>& files) {
  if (options.path.empty())
    throw path_error("data.path is empty: name a text file, a folder or a gzip file", options.path);
  if (!path_exists(options.path)) {
    ErrorPlace place;  // the caller knows where the path is written
    place.key = "data.path";
    throw UserError(fmt::format("data.path: {} does not exist{}{}", options.path,
                                in_which(options.path), nearest_path(options.path)),
                    place);
  }
  Text text;
  for (const std::string& file : files) {
    if (!text.bytes.empty() && !text.bytes.ends_with(options.document_separator))
      text.bytes += options.document_separator;
    text.begins.push_back(text.bytes.size());
    std::string bytes = read_one(file, options);
    text.marks.push_back(bytes.starts_with(kMark) ? kMark.size() : 0);
    bytes.erase(0, text.marks.back());
    if (text.bytes.empty())
      text.bytes = std::move(bytes);  // a large file is not copied
    else
      text.bytes += bytes;
  }
  if (text.bytes.empty())
    throw path_error(fmt::format("data.path: the text of {} is empty", options.path), options.path);
  return text;
}

}  // namespace strait
