// The JSON that every command writes around its own result.
#pragma once

#include <exception>
#include <string>

#include "strait/base/errors.h"
#include "strait/base/json.h"

namespace strait::cli {

/// The failure that `exception` stands for. What is no strait::Error becomes one: lack of memory
/// and unknown exceptions are internal; file-system failures and a full disk are input-output.
Error as_error(const std::exception_ptr& exception);

/// {kind, message, file, line, key, rank, operation, step}; unknown = null.
Json error_object(const Error& error);

/// {format: "strait.<command>/1", ok, exit_code, error, version, commit, machine} and then the
/// members of `body`. `error` null means success.
Json make_envelope(const std::string& command, const Error* error, const Json& body);

/// Writes the envelope to a file, so that a reader sees all of it or the old file. A target that
/// exists and is no regular file (a pipe, /dev/null) is written in place. InputOutputError on
/// failure.
void write_envelope(const std::string& path, const Json& envelope);

/// Finds out before a long command begins that a file which it writes at its end, such as its
/// report, could not be written: it is a folder, or its folder does not exist and is not `made`,
/// which the command makes. `path`: a file, "-" or "". InputOutputError.
void require_folder_of(const std::string& path, const std::string& made = "");

/// "message (file:line, key, rank 1, operation, step 3)", leaving out what is unknown.
std::string error_line(const Error& error);

}  // namespace strait::cli
