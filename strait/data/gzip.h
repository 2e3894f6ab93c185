// Unpacking of gzip data (RFC 1952) held in memory, through zlib.
#pragma once

#include <string>
#include <string_view>

namespace strait {

/// True when `bytes` begin as a gzip member does.
bool is_gzip(std::string_view bytes);

/// The unpacked contents of all members, one after the other; dictzip files (`.dz`) are gzip with
/// an extra field. Zero bytes behind the last member are padding. UserError naming `name` and the
/// offset in the packed bytes when the data is truncated, corrupt (checksum included), or followed
/// by something else.
std::string gunzip(std::string_view bytes, const std::string& name);

}  // namespace strait
