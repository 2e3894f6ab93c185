// Whole-file reading and atomic writing, with errors that name the file.
#pragma once

#include <string>
#include <string_view>

namespace strait {

/// Whole contents of a file. UserError when it does not exist or is none: a folder, or a FIFO,
/// socket or device, which may never end. InputOutputError when reading fails.
std::string read_file(const std::string& path);

/// "file" for a regular one, "folder", "FIFO", "socket", "device": of st_mode.
const char* file_kind(unsigned mode);

/// Writes `contents` to `path` so that a reader, or a crash at any point, sees the old file or the
/// new one: temporary file beside it, fsync, rename, fsync of the folder. InputOutputError on
/// failure, without a temporary file then. UserError where a FIFO, socket or device stands.
void write_file_atomically(const std::string& path, std::string_view contents);

/// Flushes a file's or folder's own data to disk. InputOutputError on failure.
void sync_path(const std::string& path);

/// Text of an errno value.
std::string errno_text(int error_number);

}  // namespace strait
