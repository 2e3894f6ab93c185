// libFuzzer target: any bytes as an llm.c shard, a Megatron index beside a .bin, and JSON-lines.
// The first byte chooses. What is accepted must be readable whole. Corpus:
// tests/fuzz/corpus/token_files.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "strait/base/errors.h"
#include "strait/data/json_lines.h"
#include "strait/data/shards/llmc_shard.h"
#include "strait/data/shards/megatron.h"

namespace {

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

void check_readable(strait::TokenSegment segment) {
  strait::Tokens tokens;
  tokens.append(std::move(segment));
  if (static_cast<int64_t>(tokens.to_vector().size()) != tokens.size())
    throw std::logic_error("tokens get lost");
}

/// Index and tokens in one input, the tokens behind the first '|'.
void try_megatron(const std::string& prefix, const std::string& bytes) {
  const size_t border = std::min(bytes.find('|'), bytes.size());
  write(prefix + ".idx", bytes.substr(0, border));
  write(prefix + ".bin", border < bytes.size() ? bytes.substr(border + 1) : "");
  strait::MegatronPair pair = strait::open_megatron(prefix);
  for (const int64_t start : pair.document_starts)
    if (start < 0 || start >= pair.tokens.count)
      throw std::logic_error("a document without tokens");
  check_readable(std::move(pair.tokens));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string path =
      (std::filesystem::temp_directory_path() / ("strait-fuzz-" + std::to_string(::getpid())))
          .string();
  try {
    if (data[0] % 3 == 0) {
      write(path, bytes);
      check_readable(strait::open_llmc_shard(path));
    } else if (data[0] % 3 == 1) {
      try_megatron(path, bytes);
    } else {
      write(path, bytes);
      strait::read_json_lines(path, "text", [](const std::string& text) {
        if (text.empty()) throw std::logic_error("an empty document");
      });
    }
  } catch (const strait::UserError&) {
    // refused, as bad input should be
  }
  for (const char* ending : {"", ".idx", ".bin"}) std::filesystem::remove(path + ending);
  return 0;
}
