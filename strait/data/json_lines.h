// JSON-lines: one JSON object per line, one of whose members is the text of a document, or a list
// of chat messages that makes it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace strait {

/// Takes the text of one document, and the number of its line, from 1.
using DocumentSink = std::function<void(std::string text, int64_t line)>;

/// Calls `sink` with the text of each line in order; blank lines and empty texts are left out. The
/// file is mapped, unpacked piece by piece when it is gzip (known by its content), and never held
/// whole. UserError with file and line: not JSON, not an object, no member `field` (key
/// data.text_field; the nearest member is named), a member that is neither a string nor a list of
/// messages (chat.h); a line above 256 MiB; broken gzip as gunzip.
void read_json_lines(const std::string& path, const std::string& field, const DocumentSink& sink);

/// Whether a file is JSON-lines: .jsonl and .ndjson always; .json when its first line is a whole
/// object; each also with .gz behind it.
bool is_json_lines(const std::string& path);

}  // namespace strait
