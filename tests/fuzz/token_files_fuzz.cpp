// libFuzzer target: any bytes as an llm.c shard, a Megatron index beside a .bin, and JSON-lines.
// The first byte chooses. What is accepted must be readable whole. Corpus:
// tests/fuzz/corpus/token_files.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "strait/base/errors.h"
#include "strait/data/json_lines.h"
#include "strait/data/shards/llmc_shard.h"
#include "strait/data/shards/megatron.h"

namespace {

/// The files of one process, gone when it ends; in memory where the system has a folder for that,
/// because on a disc making and removing them takes longer than all else.
struct Files {
  std::string path, index, tokens;
  Files() {
    namespace fs = std::filesystem;
    const fs::path memory = "/dev/shm";
    std::error_code none;
    path = (fs::is_directory(memory, none) ? memory : fs::temp_directory_path()) /
           ("strait-fuzz-" + std::to_string(::getpid()));
    index = path + ".idx";
    tokens = path + ".bin";
  }
  ~Files() {
    for (const std::string& file : {path, index, tokens}) ::unlink(file.c_str());
  }
};

void write(const std::string& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0 || ::write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    throw std::runtime_error("cannot write " + path);
  ::close(file);
}

void check_readable(strait::TokenSegment segment) {
  strait::Tokens tokens;
  tokens.append(std::move(segment));
  if (static_cast<int64_t>(tokens.to_vector().size()) != tokens.size())
    throw std::logic_error("tokens get lost");
}

/// Index and tokens in one input, the tokens behind the first '|'.
void try_megatron(const Files& files, std::string_view bytes) {
  const size_t border = std::min(bytes.find('|'), bytes.size());
  write(files.index, bytes.substr(0, border));
  write(files.tokens, border < bytes.size() ? bytes.substr(border + 1) : "");
  strait::MegatronPair pair = strait::open_megatron(files.path);
  for (const int64_t start : pair.document_starts)
    if (start < 0 || start >= pair.tokens.count)
      throw std::logic_error("a document without tokens");
  check_readable(std::move(pair.tokens));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Files files;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 3 == 0) {
      write(files.path, bytes);
      check_readable(strait::open_llmc_shard(files.path));
    } else if (data[0] % 3 == 1) {
      try_megatron(files, bytes);
    } else {
      write(files.path, bytes);
      strait::read_json_lines(files.path, "text", [](const std::string& text, int64_t) {
        if (text.empty()) throw std::logic_error("an empty document");
      });
    }
  } catch (const strait::UserError&) {
    // refused, as bad input should be
  }
  return 0;
}
