// Whole-file reading and atomic writing, with errors that name the file.
#pragma once

#include <string>
#include <string_view>

namespace strait {

/// Whole contents of a file. UserError when it does not exist or is none: a folder, or a FIFO,
/// socket or device, which may never end. InputOutputError when the system refuses it or reading
/// fails.
std::string read_file(const std::string& path);

/// Whether something is there, links followed. InputOutputError where the system will not say, as
/// without permission to enter a folder on the way.
bool path_exists(const std::string& path);
/// Whether a folder, or a regular file, is there. Errors as path_exists.
bool is_folder(const std::string& path);
bool is_regular_file(const std::string& path);

/// Throws the error about a path that could not be opened: UserError where nothing of that name can
/// be, InputOutputError for any other reason, such as permission or too many open files.
[[noreturn]] void refuse_to_open(const std::string& path, int error_number);

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
