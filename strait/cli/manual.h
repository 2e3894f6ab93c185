// Manual pages, generated from the command table.
#pragma once

#include <string>
#include <vector>

#include "strait/cli/grammar.h"

namespace strait::cli {

struct ManualPage {
  std::string file;  // "strait.1", "strait-train.1"
  std::string text;  // man(7)
};

/// One page for strait and one per command; the subjects of bench stand on its page.
std::vector<ManualPage> manual_pages(const std::vector<CommandHelp>& commands);

}  // namespace strait::cli
