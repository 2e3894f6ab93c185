// A program of another project as a child process that is asked line by line.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace strait::measure {

/// The child lives as long as this object, at most: destruction kills and reaps it, and should this
/// process die, the child meets the end of its input. Not thread-safe. Standard error of the child
/// is kept and quoted in errors.
class PeerProcess {
 public:
  /// Starts `arguments` (the first is the program, looked up in PATH). UserError when it cannot be
  /// started.
  explicit PeerProcess(const std::vector<std::string>& arguments);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// Writes a line to the child's standard input. PeerLost when the child has ended. Blocks while
  /// the child does not read and the socket is full; lines of this protocol are far smaller than
  /// that.
  void write_line(std::string_view line);

  /// Next line of the child's standard output, without its end. Blocks up to `deadline_seconds`:
  /// then Timeout; PeerLost when the child ended without one. Both quote the child's last line on
  /// standard error.
  std::string read_line(double deadline_seconds);

  /// End of the child's input.
  void close_input();

  pid_t pid() const { return pid_; }

 private:
  std::string last_words() const;

  std::string name_;
  int socket_ = -1;  // the child's input and output
  int errors_ = -1;  // a memory file that the child writes its standard error to
  pid_t pid_ = -1;
  std::string received_;
};

}  // namespace strait::measure
