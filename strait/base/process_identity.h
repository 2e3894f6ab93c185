// Which process on which host: enough to tell later whether it still runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "strait/base/json.h"

namespace strait {

struct ProcessIdentity {
  std::string host;
  std::string kernel;      // boot and process namespace: equal where processes see each other
  int64_t process = 0;     // id in that namespace
  int64_t start_tick = 0;  // since boot: tells the process from a later one of the same id
  std::string since;       // when the identity was read, UTC, for people
};

ProcessIdentity this_process();

/// Whether the process runs still; nothing where it cannot be seen from here.
std::optional<bool> still_runs(const ProcessIdentity& identity);

/// Removes the temporary files that write_file_atomically left in `folder` when its process was
/// killed, as far as they name no process of this host that runs. For the owner of the folder: a
/// process of another host that is writing there would lose its file. Files that cannot be removed
/// stay.
void remove_interrupted_writes(const std::string& folder);

Json to_json(const ProcessIdentity& identity);
/// UserError on missing or mistyped members.
ProcessIdentity identity_from_json(const Json& json);

}  // namespace strait
