#include "strait/base/lock_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/process_identity.h"

namespace strait {
namespace {

constexpr int kMostAttempts = 100;  // each lost to another contender
constexpr double kWatchEverySeconds = 0.5;

[[noreturn]] void fail(const char* doing, const std::string& path) {
  ErrorPlace place;
  place.file = path;
  throw InputOutputError(fmt::format("cannot {} {}: {}", doing, path, errno_text(errno)), place);
}

std::string make_token() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}", device(), device(), device());
}

/// A file of the chain, as it was read.
struct Link {
  std::string file;
  std::string token;                     // "" = not readable
  std::optional<ProcessIdentity> owner;  // nothing = not readable
  int refused = 0;                       // errno of a file that this process may not read
};

std::string successor(const std::string& path, const std::string& token) {
  return path + ".after-" + (token.empty() ? "unreadable" : token);
}

/// EACCES or EPERM where this process may not read the file, else 0.
int refusal_to_read(const std::string& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const int error = descriptor < 0 ? errno : 0;
  if (descriptor >= 0) ::close(descriptor);
  return error == EACCES || error == EPERM ? error : 0;
}

/// Nothing when there is no such file.
std::optional<Link> read_link(const std::string& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode)) {
    ErrorPlace place;
    place.file = file;
    throw UserError(fmt::format("{} is a {}, not a file", file, file_kind(status.st_mode)), place);
  }
  try {
    const Json json = Json::parse(read_file(file), file);
    return Link{file, json.at("token").as_string(), identity_from_json(json.at("owner")), 0};
  } catch (const Error&) {
    if (::stat(file.c_str(), &status) != 0) return std::nullopt;
    return Link{file, "", std::nullopt, refusal_to_read(file)};
  }
}

/// The owner whom the lock has now: the end of the chain. Nothing when the lock is free.
std::optional<Link> last_owner(const std::string& path) {
  std::optional<Link> last = read_link(path);
  while (last) {
    std::optional<Link> next = read_link(successor(path, last->token));
    if (!next || next->token == last->token) break;
    last = std::move(next);
  }
  return last;
}

/// Modification time; opened first, because NFS asks the server again only then.
std::optional<int64_t> touched_nanoseconds(const std::string& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return std::nullopt;
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  ::close(descriptor);
  if (!known) return std::nullopt;
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

/// Whether nobody touches the file for so long. Compares its times with each other only: clocks
/// differ.
bool stands_still(const std::string& file, double seconds) {
  const std::optional<int64_t> before = touched_nanoseconds(file);
  for (const double end = now_seconds() + seconds; now_seconds() < end;) {
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::min(kWatchEverySeconds, seconds / 4)));
    if (touched_nanoseconds(file) != before) return false;
  }
  return true;
}

bool is_gone(const Link& link, const LockTimes& times) {
  const std::optional<bool> runs = link.owner ? still_runs(*link.owner) : std::nullopt;
  return runs ? !*runs : stands_still(link.file, times.patience_seconds);
}

/// Whoever may not read the lock cannot see it renewed either.
void require_readable(const std::string& subject, const Link& link) {
  if (link.refused == 0) return;
  ErrorPlace place;
  place.file = link.file;
  throw InputOutputError(fmt::format("cannot tell who uses {}: cannot read {}: {}", subject,
                                     link.file, errno_text(link.refused)),
                         place);
}

[[noreturn]] void refuse(const std::string& subject, const std::string& path, const Link& link) {
  ErrorPlace place;
  place.file = path;
  const std::string who = link.owner
                              ? fmt::format("process {} on host {} since {}", link.owner->process,
                                            link.owner->host, link.owner->since)
                              : "an owner who cannot be read from " + link.file;
  throw UserError(fmt::format("{} is in use by {}", subject, who), place);
}

/// A file with the owner's name under a name that nobody else uses.
class Ticket {
 public:
  Ticket(const std::string& path, const std::string& token, const std::string& text)
      : file_(path + ".ticket-" + token), text_(text) {
    descriptor_ = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail("make", file_);
    if (write(descriptor_)) return;
    const int error = errno;
    discard();
    errno = error;
    fail("write", file_);
  }
  ~Ticket() { discard(); }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  /// Gives the file the name `target` as well; false when that stands already.
  bool link_to(const std::string& target) {
    if (::link(file_.c_str(), target.c_str()) == 0) return true;
    const int error = errno;
    struct stat status {};
    // A server's answer that was lost makes a link that succeeded look as if it stood already.
    if (::fstat(descriptor_, &status) == 0 && status.st_nlink > 1) return true;
    if (error == EEXIST) return false;
    if (error == EPERM || error == ENOTSUP || error == ENOSYS) return create(target);
    errno = error;
    fail("make", target);
  }
  /// The open file, which the caller owns from now on.
  int release() { return std::exchange(descriptor_, -1); }

 private:
  bool write(int descriptor) const {
    const ssize_t size = static_cast<ssize_t>(text_.size());
    return ::write(descriptor, text_.data(), text_.size()) == size && ::fsync(descriptor) == 0;
  }
  /// Where the file system has no links.
  bool create(const std::string& target) {
    const int made = ::open(target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (made < 0 && errno == EEXIST) return false;
    if (made < 0) fail("make", target);
    ::close(descriptor_);
    descriptor_ = made;
    if (!write(made)) fail("write", target);
    return true;
  }
  void discard() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
    ::unlink(file_.c_str());
  }

  std::string file_, text_;
  int descriptor_ = -1;
};

/// Files beside the lock that processes left which are gone.
void remove_leftovers(const std::string& path) {
  const std::filesystem::path lock(path);
  std::error_code ignored;
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(lock.parent_path(), ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(lock.filename().string() + ".")) continue;
    const std::optional<Link> link = read_link(entry.path());
    if (link && link->owner && still_runs(*link->owner) == false) left.push_back(link->file);
  }
  for (const std::string& file : left) ::unlink(file.c_str());
}

}  // namespace

struct LockFile::Held {
  std::string path, token;
  int descriptor = -1;
  std::mutex mutex;
  std::condition_variable wake;
  bool ending = false;
  std::thread renewer;

  bool owns() const {
    const std::optional<Link> last = last_owner(path);
    return last && last->token == token;
  }

  /// One attempt. False when another contender was faster; UserError when the owner lives.
  bool take(const std::string& subject, const LockTimes& times) {
    const std::optional<Link> last = last_owner(path);
    if (last) require_readable(subject, *last);
    if (last && !is_gone(*last, times)) refuse(subject, path, *last);
    token = make_token();
    const Json text = Json::object({{"token", token}, {"owner", to_json(this_process())}});
    Ticket ticket(path, token, text.dump(1) + "\n");
    const std::string target = last ? successor(path, last->token) : path;
    if (!ticket.link_to(target)) return false;
    if (!owns()) {  // the chain that was read is not the chain any more
      ::unlink(target.c_str());
      return false;
    }
    if (last && ::rename(target.c_str(), path.c_str()) != 0) fail("rename", target);
    descriptor = ticket.release();
    return true;
  }

  /// Touches this owner's own file, whatever stands at its name.
  void renew(double every_seconds) {
    const auto pause = std::chrono::duration<double>(every_seconds);
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, pause, [&] { return ending; })) ::futimens(descriptor, nullptr);
  }
};

LockFile::LockFile(std::string path, const std::string& subject, const LockTimes& times)
    : held_(std::make_unique<Held>()) {
  held_->path = std::move(path);
  int attempts = 0;
  while (!held_->take(subject, times))
    if (++attempts == kMostAttempts)
      throw UserError(fmt::format("{} is wanted by many processes at once", subject));
  remove_leftovers(held_->path);
  held_->renewer = std::thread([held = held_.get(), times] { held->renew(times.renew_seconds); });
}

LockFile::~LockFile() {
  {
    const std::lock_guard lock(held_->mutex);
    held_->ending = true;
  }
  held_->wake.notify_one();
  held_->renewer.join();
  if (held_->owns()) ::unlink(held_->path.c_str());
  ::close(held_->descriptor);
}

}  // namespace strait
