#include "strait/report/gnuplot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/report/plots.h"

namespace strait::report {

std::string quoted(const std::string& text) {
  std::string inner;
  for (const char c : text) {
    inner += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    if (c == '\'') inner += c;
  }
  return "'" + inner + "'";
}

void run_gnuplot(const std::string& gnuplot, const std::filesystem::path& folder,
                 const std::vector<std::string>& scripts) {
  const std::string log = folder / "gnuplot.log";
  std::vector<std::string> words = {gnuplot, "-d"};
  words.insert(words.end(), scripts.begin(), scripts.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "gnuplot.log", O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, gnuplot.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ErrorPlace place;
  place.file = gnuplot;
  place.operation = "draw plots";
  if (error != 0) {
    throw PlotterError(fmt::format("cannot start {} ({}); install gnuplot (Debian: gnuplot-nox)",
                                   gnuplot, errno_text(error)),
                       place);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    std::string said = read_file(log);
    said.erase(said.find_last_not_of('\n') + 1);
    throw PlotterError(fmt::format("{} failed: {}", gnuplot, said), place);
  }
}

}  // namespace strait::report
