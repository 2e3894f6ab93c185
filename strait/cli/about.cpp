#include "strait/cli/about.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "strait/base/version.h"
#include "strait/kernel/onednn.h"
#include "strait/kernel/products.h"

namespace strait::cli {
namespace {

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

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
    Json body = Json::object();
    for (const auto& [name, what] : all) body[lower_case(name)] = what;
    return body;
  };
}

}  // namespace strait::cli
