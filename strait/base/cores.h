// Which cores of its host this process may use.
#pragma once

#include <cstdint>
#include <vector>

namespace strait {

/// Numbers of the cores that the process is bound to, ascending; all of the host when nobody has bound it.
std::vector<int> usable_cores();
/// How many; at least 1.
int64_t available_cores();

}  // namespace strait
