#include "strait/base/version.h"

namespace strait {
const char* version() { return STRAIT_VERSION; }
const char* commit() { return STRAIT_COMMIT; }
}  // namespace strait
