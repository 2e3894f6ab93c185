// Functions of the part of the program that needs LibTorch: what GPT-2 and Llama train with on
// processors does without it, and loading it takes longer than many a command (docs/library.md).
// Where that part is linked into a program it provides them when the program starts; else the first
// call of one loads it, as libstrait_torch.so.
#pragma once

#include <atomic>
#include <utility>

namespace strait {

/// Loads libstrait_torch.so, from beside the program or from where it is installed. Returns once
/// what it provides is there. InputOutputError naming the file and what the loader says.
/// Thread-safe; the second call does nothing.
void load_library_part();

template <class Function>
class Provided;

/// Declared as an inline variable in a header, constant-initialized. Thread-safe.
template <class Result, class... Arguments>
class Provided<Result(Arguments...)> {
 public:
  using Function = Result(Arguments...);

  constexpr Provided() = default;
  Provided(const Provided&) = delete;
  Provided& operator=(const Provided&) = delete;

  Result operator()(Arguments... arguments) const {
    if (function_.load(std::memory_order_acquire) == nullptr) load_library_part();
    return function_.load(std::memory_order_acquire)(std::forward<Arguments>(arguments)...);
  }

 private:
  template <class Other>
  friend class Provides;
  std::atomic<Function*> function_ = nullptr;
};

/// A static object behind the definition of a function that is provided.
template <class Function>
class Provides {
 public:
  Provides(Provided<Function>& provided, Function* function) {
    provided.function_.store(function, std::memory_order_release);
  }
};

}  // namespace strait
