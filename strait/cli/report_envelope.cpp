#include "strait/cli/report_envelope.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <new>
#include <system_error>
#include <vector>

#include "strait/base/file.h"
#include "strait/base/version.h"
#include "strait/cli/machine.h"

namespace strait::cli {
namespace {

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

bool is_disk_failure(const std::error_code& code) {
  if (code.category() != std::generic_category() && code.category() != std::system_category())
    return false;
  return code.value() == ENOSPC || code.value() == EDQUOT || code.value() == EIO ||
         code.value() == EROFS;
}

/// Of an exception of another library, such as LibTorch, which tells its stack behind the first
/// line and has no type of its own for memory that is not there.
Error library_error(const std::string& what) {
  const std::string line = what.substr(0, what.find('\n'));
  if (line.find("allocate memory") != std::string::npos) return NothingFits(line);
  return InternalError(line);
}

}  // namespace

Error as_error(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return NothingFits("the system gave no more memory; strait plan tells what a run needs");
  } catch (const std::filesystem::filesystem_error& error) {
    ErrorPlace place;
    if (!error.path1().empty()) place.file = error.path1().string();
    return InputOutputError(error.what(), place);
  } catch (const std::system_error& error) {
    if (is_disk_failure(error.code())) return InputOutputError(error.what());
    if (error.code() == std::errc::resource_unavailable_try_again)
      return UserError(
          fmt::format("a limit of the system is reached: {}; run fewer ranks or threads, "
                      "or raise it (ulimit -a)",
                      error.what()));
    return InternalError(error.what());
  } catch (const std::exception& error) {
    return library_error(error.what());
  } catch (...) {
    return InternalError("an exception of an unknown type");
  }
}

Json error_object(const Error& error) {
  const ErrorPlace& place = error.place();
  return Json::object({{"kind", error.kind()},
                       {"message", error.what()},
                       {"file", or_null(place.file)},
                       {"line", or_null(place.line)},
                       {"key", or_null(place.key)},
                       {"rank", or_null(place.rank)},
                       {"operation", or_null(place.operation)},
                       {"step", or_null(place.step)}});
}

Json make_envelope(const std::string& command, const Error* error, const Json& body) {
  const Machine machine = describe_machine();
  Json envelope =
      Json::object({{"format", fmt::format("strait.{}/1", command)},
                    {"ok", error == nullptr},
                    {"exit_code", static_cast<int>(error ? error->code() : ExitCode::kDone)},
                    {"error", error ? error_object(*error) : Json()},
                    {"version", version()},
                    {"commit", commit()},
                    {"machine", Json::object({{"cpu", machine.cpu},
                                              {"cores", machine.cores},
                                              {"device", machine.device}})}});
  if (body.is_object())
    for (const auto& [key, value] : body.as_object()) {
      ensure(!envelope.find(key), "a command's result uses a key of the envelope");
      envelope[key] = value;
    }
  return envelope;
}

void write_envelope(const std::string& path, const Json& envelope) {
  const std::string text = envelope.dump(2) + "\n";
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) {
    write_file_atomically(path, text);
    return;
  }
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) {
    ErrorPlace place;
    place.file = path;
    throw InputOutputError(fmt::format("cannot write {}: {}", path, errno_text(errno)), place);
  }
}

void require_folder_of(const std::string& path, const std::string& made) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(path).parent_path();
  std::error_code ignored;
  ErrorPlace place;
  place.file = path;
  if (fs::is_directory(path, ignored))
    throw InputOutputError(fmt::format("cannot write {}: it is a folder", path), place);
  if (folder.empty() || fs::is_directory(folder, ignored)) return;
  const auto plain = [](const fs::path& of) { return (of / "").lexically_normal(); };
  if (!made.empty() && plain(folder) == plain(made)) return;
  throw InputOutputError(
      fmt::format("cannot write {}: there is no folder {}", path, folder.string()), place);
}

std::string error_line(const Error& error) {
  const ErrorPlace& place = error.place();
  const std::string message = error.what();
  std::vector<std::string> parts;
  if (place.file && place.line)
    parts.push_back(fmt::format("{}:{}", *place.file, *place.line));
  else if (place.file && message.find(*place.file) == std::string::npos)
    parts.push_back(*place.file);
  if (place.key) parts.push_back(*place.key);
  if (place.rank) parts.push_back(fmt::format("rank {}", *place.rank));
  if (place.operation) parts.push_back(*place.operation);
  if (place.step) parts.push_back(fmt::format("step {}", *place.step));
  return parts.empty() ? message : fmt::format("{} ({})", message, fmt::join(parts, ", "));
}

}  // namespace strait::cli
