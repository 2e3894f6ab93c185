#include "strait/checkpoint/files/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "strait/base/errors.h"

namespace strait::checkpoint {

void Hasher128::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Hasher128::Hasher128() : state_(XXH3_createState()) {
  ensure(state_ != nullptr && XXH3_128bits_reset(state_.get()) == XXH_OK, "hash: no state");
}
Hasher128::~Hasher128() = default;
Hasher128::Hasher128(Hasher128&&) noexcept = default;
Hasher128& Hasher128::operator=(Hasher128&&) noexcept = default;

void Hasher128::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

std::string Hasher128::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string hash_hex(std::string_view text) {
  Hasher128 hasher;
  hasher.update(text);
  return hasher.hex();
}

std::string parameter_hash(
    std::vector<std::string> names,
    const std::function<std::span<const std::byte>(const std::string&)>& bytes_of) {
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    throw InternalError(fmt::format("parameter hash: the parameter {} stands twice", *twice));
  Hasher128 hasher;
  for (const std::string& name : names) hasher.update(bytes_of(name));
  return hasher.hex();
}

}  // namespace strait::checkpoint
