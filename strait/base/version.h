// The program's version and the commit it was built from.
#pragma once

namespace strait {
const char* version();
const char* commit();
}  // namespace strait
