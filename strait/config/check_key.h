// One key against its own rule, whatever the other keys say.
#pragma once

#include "strait/config/keys.h"

namespace strait {

/// Accepts the default always. UserError with file, line, key and the nearest valid value
/// otherwise.
void check_key(const Key& key, const Run& run);

}  // namespace strait
