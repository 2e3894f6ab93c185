#include "strait/runtime/guard.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <span>

#include "strait/base/errors.h"

namespace strait::runtime {
namespace {

using program::Access;

/// Guards at work; a handler of signals has no other way to them.
constexpr size_t kMostGuards = 256;
std::array<std::atomic<Guard*>, kMostGuards> guards_at_work;
struct sigaction handler_before;

bool was_write([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  const auto* machine = static_cast<const ucontext_t*>(context);
  return (machine->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  return false;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  for (const std::atomic<Guard*>& guard : guards_at_work)
    if (Guard* here = guard.load(); here && here->pass(info->si_addr, was_write(context))) return;
  ::sigaction(signal, &handler_before,
              nullptr);  // not ours: faults again, for whoever was there before
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &handler_before);
  });
}

size_t whole_pages(int64_t bytes) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (static_cast<size_t>(bytes) + page - 1) / page * page;
}

std::span<std::byte> bytes_of(const Bound& operand) {
  return {static_cast<std::byte*>(operand.data), static_cast<size_t>(operand.bytes)};
}

void fill(std::span<std::byte> memory, std::byte noise) {
  if (!memory.empty()) std::memset(memory.data(), static_cast<int>(noise), memory.size());
}

}  // namespace

/// The operands that an execution changes, and what they held before. Its memory is kept from op to
/// op, so that guarded steps too allocate nothing in the steady state.
class Guard::Replay {
 public:
  void begin(const Instance& instance) {
    made_.clear();
    changed_.clear();
    before_.clear();
    for (const Bound& operand : instance.writes) {
      if (operand.data == nullptr) continue;
      (operand.access == Access::kWrite ? made_ : changed_).push_back(&operand);
    }
    for (const Bound* operand : changed_) keep(*operand, before_);
  }
  bool makes_something() const { return !made_.empty(); }
  /// Noise where results will be.
  void poison(std::byte noise) const {
    for (const Bound* operand : made_) fill(bytes_of(*operand), noise);
  }
  /// Remembers the results and puts back what was there.
  void rewind() {
    results_.clear();
    for (const Bound* operand : made_) keep(*operand, results_);
    const std::byte* from = before_.data();
    for (const Bound* operand : changed_) {
      std::copy_n(from, operand->bytes, bytes_of(*operand).begin());
      from += operand->bytes;
    }
  }
  /// The operand whose results depend on the noise, or nullptr. Bytes that keep it were not
  /// written.
  const Bound* depends(std::byte first, std::byte second) const {
    const std::byte* result = results_.data();
    for (const Bound* operand : made_)
      for (const std::byte now : bytes_of(*operand)) {
        const std::byte before = *result++;
        if (before != now && !(before == first && now == second)) return operand;
      }
    return nullptr;
  }

 private:
  static void keep(const Bound& operand, std::vector<std::byte>& memory) {
    const std::span<std::byte> held = bytes_of(operand);
    memory.insert(memory.end(), held.begin(), held.end());
  }

  std::vector<const Bound*> made_, changed_;
  std::vector<std::byte> before_, results_;  // of one operand after another
};

namespace {

// Neither is what a computation leaves by chance: signalling NaNs of odd bytes.
constexpr std::byte kFirstNoise{0xA5}, kSecondNoise{0x5A};

std::string name_of(const Instance& instance, int array, int64_t index) {
  const program::ValueArray& values = instance.program->arrays[array];
  return values.count == 1 ? values.name : fmt::format("{}[{}]", values.name, index);
}

}  // namespace

Guard::Guard() : replay_(std::make_unique<Replay>()) {
  install_handler();
  for (std::atomic<Guard*>& place : guards_at_work) {
    Guard* none = nullptr;
    if (place.compare_exchange_strong(none, this)) return;
  }
  throw InternalError("more ranks are guarded in one process than there are places for");
}

Guard::~Guard() {
  for (std::atomic<Guard*>& place : guards_at_work) {
    Guard* own = this;
    if (place.compare_exchange_strong(own, nullptr)) return;
  }
}

Guard::Reach Guard::reach_of(const Value& value, const Instance& instance) const {
  // An operand may be one of several joined values.
  const auto is_it = [&](const Bound& operand) {
    const auto* at = static_cast<const std::byte*>(operand.data);
    return at == value.data || (at > value.data && at < value.data + value.bytes);
  };
  if (std::ranges::any_of(instance.writes, is_it)) return Reach::kAll;
  return std::ranges::any_of(instance.reads, is_it) ? Reach::kReadable : Reach::kNone;
}

void Guard::protect(const Instance& instance) {
  reach_.clear();
  touched_ = -1;
  for (const Value& value : values_) {
    reach_.push_back(reach_of(value, instance));
    if (reach_.back() == Reach::kAll || value.bytes == 0) continue;
    const int access = reach_.back() == Reach::kReadable ? PROT_READ : PROT_NONE;
    ensure(::mprotect(value.data, whole_pages(value.bytes), access) == 0,
           "a value cannot be guarded");
  }
}

void Guard::release() {
  for (size_t i = 0; i < values_.size(); ++i)
    if (reach_[i] != Reach::kAll && values_[i].bytes > 0)
      ::mprotect(values_[i].data, whole_pages(values_[i].bytes), PROT_READ | PROT_WRITE);
}

bool Guard::pass(const void* address, bool writes) {
  const auto* at = static_cast<const std::byte*>(address);
  for (size_t i = 0; i < reach_.size(); ++i) {
    const Value& value = values_[i];
    if (at < value.data || at >= value.data + whole_pages(value.bytes)) continue;
    if (touched_ < 0) {
      wrote_ = writes;
      touched_ = static_cast<int64_t>(i);
    }
    return ::mprotect(value.data, whole_pages(value.bytes), PROT_READ | PROT_WRITE) == 0;
  }
  return false;
}

void Guard::complain(const Instance& instance) const {
  if (touched_ < 0) return;
  const Value& value = values_[static_cast<size_t>(touched_)];
  const bool readable = reach_[static_cast<size_t>(touched_)] == Reach::kReadable;
  throw InternalError(fmt::format(
      "`{}` {} {}, which it {}", program::print_op(*instance.program, *instance.op, instance.loops),
      wrote_ ? "writes" : "reads", name_of(instance, value.array, value.index),
      readable ? "only declares as read" : "does not declare"));
}

void Guard::execute_protected(const Execute& execute, const Instance& instance) {
  protect(instance);
  try {
    execute(instance);
  } catch (...) {
    release();
    throw;
  }
  release();
  complain(instance);
}

void Guard::run(const Execute& execute, const Instance& instance, int64_t workspace_bytes) {
  Replay& replay = *replay_;
  replay.begin(instance);
  const std::span<std::byte> workspace(static_cast<std::byte*>(instance.workspace),
                                       static_cast<size_t>(workspace_bytes));
  replay.poison(kFirstNoise);
  fill(workspace, kFirstNoise);
  execute_protected(execute, instance);
  if (instance.op->kernel->outside || !replay.makes_something()) return;
  replay.rewind();
  replay.poison(kSecondNoise);
  fill(workspace, kSecondNoise);
  execute_protected(execute, instance);
  if (const Bound* operand = replay.depends(kFirstNoise, kSecondNoise))
    throw InternalError(fmt::format(
        "`{}` reads {}, or its workspace, before it writes it, but declares it as written",
        program::print_op(*instance.program, *instance.op, instance.loops),
        name_of(instance, operand->array, operand->index)));
}

}  // namespace strait::runtime
