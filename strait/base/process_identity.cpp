#include "strait/base/process_identity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace strait {
namespace {

constexpr int kStartField = 22;  // of /proc/PID/stat, proc(5)

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  std::array<char, 256> target{};
  const ssize_t length = ::readlink(path, target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<size_t>(length)) : "";
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string kernel_name() {
  return first_line("/proc/sys/kernel/random/boot_id") + " " + link_target("/proc/self/ns/pid");
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

/// Ticks from boot to the start of a process; nothing when there is none, or only its exit status.
std::optional<int64_t> start_tick(int64_t process) {
  const std::string line = first_line(fmt::format("/proc/{}/stat", process));
  const size_t name_end = line.rfind(')');  // a name may hold spaces and brackets
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  if (state == "Z" || state == "X") return std::nullopt;
  for (int field = 4; field < kStartField; ++field) fields >> skipped;
  int64_t tick = 0;
  return fields >> tick ? std::optional(tick) : std::nullopt;
}

/// The process that NAME.tmp-PROCESS names; nothing for other names.
std::optional<int64_t> temporary_owner(const std::string& name) {
  constexpr std::string_view kMark = ".tmp-";
  const size_t mark = name.rfind(kMark);
  if (mark == std::string::npos) return std::nullopt;
  const char *begin = name.data() + mark + kMark.size(), *end = name.data() + name.size();
  int64_t process = 0;
  const auto [stop, problem] = std::from_chars(begin, end, process);
  return problem == std::errc() && stop == end ? std::optional(process) : std::nullopt;
}

}  // namespace

ProcessIdentity this_process() {
  const int64_t own = ::getpid();
  return {host_name(), kernel_name(), own, start_tick(own).value_or(0), utc_now()};
}

std::optional<bool> still_runs(const ProcessIdentity& identity) {
  if (identity.kernel != kernel_name()) return std::nullopt;
  return start_tick(identity.process) == identity.start_tick;
}

void remove_interrupted_writes(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::optional<int64_t> owner = temporary_owner(entry.path().filename());
    if (owner && entry.is_regular_file(ignored) && !start_tick(*owner))
      fs::remove(entry.path(), ignored);
  }
}

Json to_json(const ProcessIdentity& identity) {
  return Json::object({{"host", identity.host},
                       {"kernel", identity.kernel},
                       {"process", identity.process},
                       {"start_tick", identity.start_tick},
                       {"since", identity.since}});
}

ProcessIdentity identity_from_json(const Json& json) {
  return {json.at("host").as_string(), json.at("kernel").as_string(),
          json.at("process").as_integer(), json.at("start_tick").as_integer(),
          json.at("since").as_string()};
}

}  // namespace strait
