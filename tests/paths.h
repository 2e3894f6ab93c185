// Where the sources lie that are tested, and where they were built.
#pragma once

#include <string>

namespace strait::test {

/// `path` in the project's folder.
std::string in_source(const std::string& path);
/// `path` in the build's.
std::string in_build(const std::string& path);

}  // namespace strait::test
