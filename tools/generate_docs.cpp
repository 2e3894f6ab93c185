// Writes the pages under docs/ that the program generates, or with --check says which are out of
// date.
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "strait/base/file.h"
#include "strait/config/print.h"

namespace {

struct Page {
  std::string name, text;
};

std::string current_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return (std::ostringstream() << file.rdbuf()).str();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool check = arguments.size() == 2 && arguments[1] == "--check";
  if (arguments.empty() || arguments.size() > (check ? 2u : 1u)) {
    std::cerr << "usage: generate_docs FOLDER [--check]\n";
    return 2;
  }
  const std::vector<Page> pages = {{"run-file.md", strait::run_file_reference()}};
  int stale = 0;
  for (const Page& page : pages) {
    const std::string path = arguments[0] + "/" + page.name;
    if (current_text(path) == page.text) continue;
    ++stale;
    if (!check) strait::write_file_atomically(path, page.text);
    std::cout << path << (check ? ": out of date, run tools/generate_docs\n" : ": written\n");
  }
  std::cout << "docs: " << pages.size() << " generated pages, " << stale
            << (check ? " out of date\n" : " written\n");
  return check && stale > 0 ? 1 : 0;
}
