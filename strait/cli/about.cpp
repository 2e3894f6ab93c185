#include "strait/cli/about.h"

#include <fmt/format.h>

#include "strait/base/version.h"
#include "strait/kernel/onednn.h"
#include "strait/kernel/products.h"

namespace strait::cli {

Parts own_parts() {
  const std::string onednn = kernel::onednn_version();
  return {{"instructions", kernel::instruction_set()},
          {"tiles", kernel::tile_text(kernel::tile_access())},
          {"oneDNN", onednn.empty() ? "none" : onednn}};
}

std::string about_text(const Parts& parts) {
  std::string text = fmt::format("strait {} ({})", version(), commit());
  for (const auto& [name, what] : parts) text += fmt::format("\n{:<13}{}", name, what);
  return text;
}

Handler version_handler(const std::function<Parts()>& parts) {
  return [parts](const Command&, Output& output) {
    Parts all = parts();
    for (auto& part : own_parts()) all.push_back(std::move(part));
    output.line(about_text(all));
    return Json::object();
  };
}

}  // namespace strait::cli
