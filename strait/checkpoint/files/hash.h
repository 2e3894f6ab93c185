// XXH3-128 (Collet), streamed: hashes of checkpoint files and of parameters.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct XXH3_state_s;

namespace strait::checkpoint {

/// Streaming XXH3-128 with seed 0. Not thread-safe. Cost: one pass, close to the speed of memory.
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(Hasher128&&) noexcept;
  Hasher128& operator=(Hasher128&&) noexcept;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  /// 32 lower-case hexadecimal digits of what was given so far, high half first (as xxhsum prints).
  std::string hex() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// Hash of a whole buffer.
std::string hash_hex(std::string_view text);

/// Hash of the parameters' bytes, one after the other in the order of their names (sorted here,
/// bytewise). `bytes_of(name)` gives a parameter's master weights without padding; the span must
/// stay valid until the next call. Equal bits give an equal hash whatever the world and the
/// placement. InternalError when a name stands twice.
std::string parameter_hash(
    std::vector<std::string> names,
    const std::function<std::span<const std::byte>(const std::string&)>& bytes_of);

}  // namespace strait::checkpoint
