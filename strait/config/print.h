// A Run back to run.toml, and the reference page of its keys.
#pragma once

#include <string>

#include "strait/config/run.h"

namespace strait {

/// The whole run as run.toml with every key, by sections; parse_run of it gives an equal Run, bit
/// for bit. Left out, because another printed key determines them: placement keys that the preset
/// fills, and the two cluster keys that were not chosen.
std::string print_run(const Run& run);

/// docs/run-file.md: every key with type, default, accepted values and meaning.
std::string run_file_reference();

}  // namespace strait
