// From files to one text in UTF-8.
#pragma once

#include <string>
#include <vector>

#include "strait/data/options.h"

namespace strait {

/// Contents of one file as UTF-8: unpacks gzip (known by its first bytes), then decodes `encoding`.
///   utf-8         checked; a byte order mark at the beginning stays
///   windows-1252  as browsers do: the five unassigned bytes become the C1 controls of the same
///   number latin-1       byte b becomes U+00b
/// UserError: unknown encoding (key data.encoding, nearest choice), a byte that is not UTF-8
/// (`name`, byte offset, what to try), broken gzip.
std::string decode_text(std::string bytes, const std::string& encoding, const std::string& name);

/// The regular files of a folder, recursively, in the order of their paths, without hidden files
/// and folders. UserError (key data.path) when there are none, and for what else is there: links to
/// folders, which are not followed, or to nothing, FIFOs, devices. InputOutputError when a folder
/// cannot be listed.
std::vector<std::string> data_files(const std::string& folder);

struct Text {
  std::string bytes;           // UTF-8
  std::vector<size_t> begins;  // in `bytes`, of each file
  std::vector<size_t> marks;   // bytes of each file's byte order mark, which `bytes` lack
};

/// Which file an offset in `text` lies in, and the offset there, before decoding `encoding`.
struct FilePosition {
  size_t file = 0, offset = 0;
};
FilePosition position_in_file(const Text& text, size_t offset, const std::string& encoding);

/// The text of `files`, which find_data made of options.path, one after the other. When
/// `document_separator` is set, it is added behind each file that does not end with it and is not
/// the last. Byte order marks are dropped. Blocks. UserError with key data.path when options.path
/// is missing or the text is empty; InputOutputError when the system refuses a file.
Text read_text(const DataOptions& options, const std::vector<std::string>& files);

}  // namespace strait
