// Rows of the key table whose systems are still to come.
#pragma once

#include <vector>

#include "strait/config/keys.h"

namespace strait {

/// Keys that take their default alone: any other value is refused, so that a file written for a
/// later version is never run as something else.
std::vector<Key> reserved_keys();

}  // namespace strait
