// Writes the pages under docs/ that the program generates, or with --check says which are out of
// date; with --share the manual pages and shell completion that are installed.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "strait/base/file.h"
#include "strait/cli/completion.h"
#include "strait/cli/manual.h"
#include "strait/config/print.h"

namespace {

struct Page {
  std::string name, text;
};

std::string current_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return (std::ostringstream() << file.rdbuf()).str();
}

void write_page(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  strait::write_file_atomically(path, text);
}

/// Where shells and man look below a prefix; Debian's zsh looks elsewhere under /usr.
int write_share(const std::string& folder) {
  const std::vector<strait::cli::CommandHelp> commands = strait::cli::describe_commands();
  const auto complete = [&](const char* shell, const char* path) {
    write_page(folder + path, strait::cli::completion_script(shell, commands));
  };
  for (const strait::cli::ManualPage& page : strait::cli::manual_pages(commands))
    write_page(folder + "/man/man1/" + page.file, page.text);
  complete("bash", "/bash-completion/completions/strait");
  complete("zsh", "/zsh/site-functions/_strait");
  complete("zsh", "/zsh/vendor-completions/_strait");
  complete("fish", "/fish/vendor_completions.d/strait.fish");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 2 && arguments[1] == "--share") return write_share(arguments[0]);
  const bool check = arguments.size() == 2 && arguments[1] == "--check";
  if (arguments.empty() || arguments.size() > (check ? 2u : 1u)) {
    std::cerr << "usage: generate_docs FOLDER [--check | --share]\n";
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
