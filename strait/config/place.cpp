#include "strait/config/place.h"

#include <fmt/format.h>

namespace strait {
namespace {

bool is_of_data(const ErrorPlace& place) { return place.key && place.key->starts_with("data."); }

/// Where the key is written or, of data, where their path is.
const KeyPlace* written_place(const Run& run, const ErrorPlace& place) {
  if (!place.key) return nullptr;
  auto written = run.written.find(*place.key);
  if (written == run.written.end() && is_of_data(place)) written = run.written.find("data.path");
  return written == run.written.end() ? nullptr : &written->second;
}

}  // namespace

void complete_place(const Run& run, ErrorPlace& place) {
  const KeyPlace* const written = written_place(run, place);
  if (place.file || written == nullptr) return;
  place.file = written->file;
  if (written->line > 0) place.line = written->line;
}

UserError in_run_file(const Run& run, const UserError& error) {
  ErrorPlace place = error.place();
  std::string message = error.what();
  const KeyPlace* const written = written_place(run, place);
  const bool in_data = place.file && is_of_data(place) && written != nullptr;
  if (in_data && place.line) {
    message += fmt::format("; the data are named in {}{}", written->file,
                           written->line > 0 ? fmt::format(":{}", written->line) : "");
  } else if (in_data) {
    if (message.find(*place.file) == std::string::npos)
      message = fmt::format("{}: {}", *place.file, message);
    place.file.reset();
  }
  complete_place(run, place);
  return UserError(message, place);
}

}  // namespace strait
