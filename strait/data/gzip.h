// Unpacking of gzip data (RFC 1952) held in memory, through zlib.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace strait {

/// True when `bytes` begin as a gzip member does.
bool is_gzip(std::string_view bytes);

/// The unpacked contents of all members, one after the other; dictzip files (`.dz`) are gzip with
/// an extra field. Zero bytes behind the last member are padding. UserError naming `name` and the
/// offset in the packed bytes when the data is truncated, corrupt (checksum included), or followed
/// by something else, or when it unpacks to more than `most_bytes`.
std::string gunzip(std::string_view bytes, const std::string& name, int64_t most_bytes);

/// Takes the next unpacked bytes; false ends the unpacking.
using ChunkSink = std::function<bool(std::string_view chunk)>;

/// The same piece by piece, none larger than 256 KiB: memory does not grow with the file. Errors
/// come when the sink has had what stands before them.
void gunzip_chunks(std::string_view bytes, const std::string& name, const ChunkSink& sink);

}  // namespace strait
