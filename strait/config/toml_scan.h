// A look over TOML text before the parser: refuses what would make the parser misbehave.
#pragma once

#include <string>
#include <string_view>

namespace strait {

/// UserError with file and line when the text is larger than 1 MiB, or when a key has more than 64
/// dots: each makes a table, tables are destroyed recursively, and a long key would exhaust the
/// stack. Everything else is left to the parser. Cost: one pass.
void check_toml_text(std::string_view text, const std::string& file);

}  // namespace strait
