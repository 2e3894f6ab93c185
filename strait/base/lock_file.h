// A lock that is a file naming its owner, for folders that several hosts may reach.
#pragma once

#include <memory>
#include <string>

namespace strait {

/// How the owner shows hosts that cannot see its process that it lives.
struct LockTimes {
  double renew_seconds = 10;     // the owner touches its file so often
  double patience_seconds = 60;  // a file that stood still for so long has lost its owner
};

/// Holds the lock `path` from construction to destruction.
///
/// Whoever makes the file owns the lock. It is made whole under another name and given its own by
/// link(), which exactly one of several contenders can do, on NFS too; O_CREAT | O_EXCL serves
/// where a file system has no links. A process that dies leaves its lock. The next one to come
/// finds the owner gone and takes over: at once where it can see the owner's process (process id
/// and start time, same boot, same process namespace), else after watching the file for
/// `patience_seconds`.
///
/// Takes over without a race: the successor of an owner is a file `path`.after-<token of the
/// owner>, again made by link(), so every owner has at most one. Ownership is what the chain from
/// `path` ends with; the winner moves its own file to `path`.
class LockFile {
 public:
  /// UserError naming host, process and start of an owner that lives; `subject` says what is locked
  /// ("the run folder runs/a"). InputOutputError when the system refuses, or the lock may not be
  /// read. Blocks up to `patience_seconds` when the owner is of another host, else not.
  LockFile(std::string path, const std::string& subject, const LockTimes& times = {});
  /// Removes the file if it is still this owner's.
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

 private:
  struct Held;
  std::unique_ptr<Held> held_;
};

}  // namespace strait
