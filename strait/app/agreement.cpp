#ifdef STRAIT_MPI

#include "strait/app/agreement.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/json.h"
#include "strait/cli/report_envelope.h"

namespace strait::app {
namespace {

/// The others have met, and know of the failure already.
struct Agreed {
  Error error;
};

/// How long a rank that says nothing stays, so that the launcher does not end rank 0 before it has
/// spoken.
constexpr auto kSilence = std::chrono::milliseconds(500);

std::string told(const Error& error) {
  Json text = cli::error_object(error);
  text["code"] = static_cast<int>(error.code());
  return "-" + text.dump();
}

Error heard(const std::string& text, size_t rank) {
  const Json error = Json::parse(text.substr(1), "an error of another rank");
  ErrorPlace place;
  const auto string_of = [&](const char* key) -> std::optional<std::string> {
    return error.at(key).is_null() ? std::nullopt : std::optional(error.at(key).as_string());
  };
  const auto integer_of = [&](const char* key) -> std::optional<int64_t> {
    return error.at(key).is_null() ? std::nullopt : std::optional(error.at(key).as_integer());
  };
  place.file = string_of("file");
  place.line = integer_of("line");
  place.key = string_of("key");
  place.operation = string_of("operation");
  place.step = integer_of("step");
  if (rank > 0) place.rank = static_cast<int64_t>(rank);
  return Error(static_cast<ExitCode>(error.at("code").as_integer()), error.at("kind").as_string(),
               error.at("message").as_string(), place);
}

}  // namespace

std::string Agreement::meet(const std::string& text) {
  const std::vector<std::string> texts = session_.exchange(text);
  for (size_t rank = 0; rank < texts.size(); ++rank)
    if (texts[rank].starts_with('-')) throw Agreed{heard(texts[rank], rank)};
  return texts.front().substr(1);
}

std::string Agreement::on_lead(const std::function<std::string()>& action) {
  std::string text = "+";
  if (session_.rank() == 0) {
    try {
      text += action();
    } catch (...) {
      text = told(cli::as_error(std::current_exception()));
    }
  }
  return meet(text);
}

void Agreement::all(const std::function<void()>& action) {
  try {
    std::string text = "+";
    try {
      action();
    } catch (const Agreed&) {
      throw;
    } catch (...) {
      text = told(cli::as_error(std::current_exception()));
    }
    meet(text);
  } catch (const Agreed& agreed) {
    const bool lead = session_.rank() == 0;
    session_.end();
    if (lead) throw agreed.error;
    std::this_thread::sleep_for(kSilence);
    std::_Exit(static_cast<int>(agreed.error.code()));
  }
}

}  // namespace strait::app

#endif
