#include "strait/measure/peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/file.h"

extern char** environ;

namespace strait::measure {
namespace {

/// posix_spawnp with the three standard streams; an errno value. Signals are unblocked and at their
/// defaults.
int spawn(const std::vector<std::string>& arguments, int stream, int errors, pid_t* pid) {
  std::vector<char*> words;
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, stream, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, stream, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error = posix_spawnp(pid, words[0], &actions, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

PeerProcess::PeerProcess(const std::vector<std::string>& arguments) {
  ensure(!arguments.empty(), "PeerProcess: no program named");
  name_ = arguments.front();
  int ends[2];
  // A socket instead of pipes: writing to an ended child then fails, without a signal.
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw InputOutputError(fmt::format("{}: no socket for a child: {}", name_, errno_text(errno)));
  }
  errors_ = memfd_create("strait-peer-errors", MFD_CLOEXEC);
  const int error = errors_ < 0 ? errno : spawn(arguments, ends[1], errors_, &pid_);
  close(ends[1]);
  socket_ = ends[0];
  if (error != 0) {
    close(socket_);
    if (errors_ >= 0) close(errors_);
    throw UserError(fmt::format("{}: cannot be started: {}", name_, errno_text(error)));
  }
}

PeerProcess::~PeerProcess() {
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  close(socket_);
  close(errors_);
}

void PeerProcess::write_line(std::string_view line) {
  const std::string text = std::string(line) + "\n";
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t count = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw PeerLost(fmt::format("{}: ended before it was asked{}", name_, last_words()));
    }
    sent += static_cast<size_t>(count);
  }
}

std::string PeerProcess::read_line(double deadline_seconds) {
  const double end = now_seconds() + deadline_seconds;
  while (true) {
    const size_t newline = received_.find('\n');
    if (newline != std::string::npos) {
      std::string line = received_.substr(0, newline);
      received_.erase(0, newline + 1);
      return line;
    }
    const double left = end - now_seconds();
    pollfd entry{socket_, POLLIN, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp(left * 1e3 + 1.0, 0.0, 1e9)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      throw Timeout(
          fmt::format("{}: no answer within {} seconds{}", name_, deadline_seconds, last_words()));
    }
    char buffer[4096];
    const ssize_t count = recv(socket_, buffer, sizeof(buffer), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw PeerLost(fmt::format("{}: ended without an answer{}", name_, last_words()));
    received_.append(buffer, static_cast<size_t>(count));
  }
}

void PeerProcess::close_input() { shutdown(socket_, SHUT_WR); }

std::string PeerProcess::last_words() const {
  char buffer[4096];
  const off_t size = lseek(errors_, 0, SEEK_END);
  const off_t begin = std::max<off_t>(0, size - static_cast<off_t>(sizeof(buffer)));
  const ssize_t count = pread(errors_, buffer, sizeof(buffer), begin);
  std::string text(buffer, static_cast<size_t>(std::max<ssize_t>(count, 0)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t newline = text.find_last_of('\n');
  if (newline != std::string::npos) text.erase(0, newline + 1);
  return text.empty() ? "" : "; it said: " + text;
}

}  // namespace strait::measure
