#include "tests/paths.h"

namespace strait::test {

std::string in_source(const std::string& path) { return STRAIT_SOURCE_DIR "/" + path; }
std::string in_build(const std::string& path) { return STRAIT_BINARY_DIR "/" + path; }

}  // namespace strait::test
