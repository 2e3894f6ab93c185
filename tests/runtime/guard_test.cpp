// Kernels that lie about their operands are found out, by name; honest ones run as ever.
#include "strait/runtime/guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/comm/threads/thread_world.h"
#include "strait/runtime/interpreter.h"
#include "strait/verify/verify.h"

namespace strait::runtime {
namespace {

using program::Access;
using program::Count;
using ::testing::HasSubstr;

constexpr int64_t kElements = 5;

const program::Kernel kWork = {"work",
                               program::Bound::kNothing,
                               {{"in", program::kReads},
                                {"out", program::kWrites, Count::kOptional},
                                {"sum", program::kAdds, Count::kOptional},
                                {"state", program::kUpdates, Count::kOptional}},
                               {}};
enum WorkOperand : int { kIn, kOut, kSum, kState };

/// Values "in", "out", "secret"; one op that reads the first and touches the second as declared.
program::Program program_with(Access access) {
  program::Program program;
  program.name = "test";
  program.step_kind = "steady";
  program.streams = {{"compute", 0}};
  for (const char* name : {"in", "out", "secret"}) {
    program::ValueArray array;
    array.name = name;
    array.partition = {kElements, kElements};
    array.lifetime = program::Lifetime::kResident;
    program.arrays.push_back(array);
  }
  const int slot = access == Access::kAdd ? kSum : access == Access::kUpdate ? kState : kOut;
  program::Op op;
  op.kind = program::OpKind::kKernel;
  op.kernel = &kWork;
  op.reads = {{0, {}, Access::kRead, kIn}};
  op.writes = {{1, {}, access, slot}};
  program.body = {op};
  program::verify_or_throw({program});
  return program;
}

/// What a kernel may reach if it wants to.
struct Hands {
  const float* in;
  float *out, *secret;
};

/// Runs it once under guard; what "out" holds then.
std::vector<float> run(Access access, const std::function<void(const Hands&)>& work) {
  Cluster cluster;
  cluster.levels = {{"world", 1, 1e9, 1e-6, 1}};
  cluster.ranks = 1;
  const auto worlds = comm::make_thread_worlds(1, cluster, {});
  memory::Pool pool;
  pool.separate_pages();
  State state(pool, 0);
  Executors executors;
  executors.add(kWork, Execute([&](const Instance& instance) {
                  work({static_cast<const float*>(instance.reads[0].data),
                        static_cast<float*>(instance.writes[0].data),
                        static_cast<float*>(state.array("secret").buffers[0])});
                }));
  const program::Program program = program_with(access);
  Site site{worlds->world(0), state, pool, executors};
  site.guarded = true;
  Interpreter interpreter(program, site);
  auto* in = static_cast<float*>(state.array("in").buffers[0]);
  for (int64_t i = 0; i < kElements; ++i) in[i] = static_cast<float>(i);
  interpreter.run(0);
  const auto* out = static_cast<const float*>(state.array("out").buffers[0]);
  return {out, out + kElements};
}

/// The lie, as it is told; "" when none was found.
std::string complaint(Access access, const std::function<void(const Hands&)>& work) {
  try {
    run(access, work);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

void for_all(const std::function<void(int64_t)>& body) {
  for (int64_t i = 0; i < kElements; ++i) body(i);
}

TEST(Guard, HonestKernelsComputeAsEver) {
  EXPECT_THAT(run(Access::kWrite,
                  [](const Hands& h) { for_all([&](int64_t i) { h.out[i] = 2 * h.in[i]; }); }),
              ::testing::ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(
      run(Access::kAdd, [](const Hands& h) { for_all([&](int64_t i) { h.out[i] += h.in[i]; }); }),
      ::testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(
      run(Access::kUpdate,
          [](const Hands& h) { for_all([&](int64_t i) { h.out[i] = h.out[i] / 2 + h.in[i]; }); }),
      ::testing::ElementsAre(0, 1, 2, 3, 4));
}

TEST(Guard, FindsAnUndeclaredRead) {
  const std::string lie = complaint(Access::kWrite, [](const Hands& h) {
    for_all([&](int64_t i) { h.out[i] = h.in[i] + h.secret[i]; });
  });
  EXPECT_THAT(lie,
              HasSubstr("`out = work(in) on compute` reads secret, which it does not declare"));
}

TEST(Guard, FindsAnUndeclaredWrite) {
  const std::string lie = complaint(Access::kWrite, [](const Hands& h) {
    for_all([&](int64_t i) { h.out[i] = h.in[i]; });
    h.secret[3] = 1;
  });
  EXPECT_THAT(lie,
              HasSubstr("`out = work(in) on compute` writes secret, which it does not declare"));
}

TEST(Guard, FindsAWriteDeclaredAsRead) {
  const std::string lie = complaint(Access::kWrite, [](const Hands& h) {
    for_all([&](int64_t i) { h.out[i] = h.in[i]; });
    const_cast<float*>(h.in)[0] = 1;
  });
  EXPECT_THAT(lie, HasSubstr("writes in, which it only declares as read"));
}

TEST(Guard, FindsAnAddDeclaredAsWrite) {
  const std::string lie = complaint(
      Access::kWrite, [](const Hands& h) { for_all([&](int64_t i) { h.out[i] += h.in[i]; }); });
  EXPECT_THAT(lie, HasSubstr("reads out, or its workspace, before it writes it"));
}

TEST(Guard, FindsAnUpdateDeclaredAsWrite) {
  const std::string lie = complaint(Access::kWrite, [](const Hands& h) {
    for_all([&](int64_t i) { h.out[i] = 0.5f * h.out[i] + h.in[i]; });
  });
  EXPECT_THAT(lie, HasSubstr("reads out, or its workspace, before it writes it"));
}

TEST(Guard, LetsAPartStayUnwritten) {
  EXPECT_EQ(complaint(Access::kWrite, [](const Hands& h) { h.out[1] = h.in[1]; }), "");
}

}  // namespace
}  // namespace strait::runtime
