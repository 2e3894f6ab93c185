// What executors see of an op, and who is asked.
#include "strait/runtime/executors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "tests/program/program_builder.h"

namespace strait::runtime {
namespace {

using program::Op;
using program::Program;
using testing::ElementsAre;
using testing::HasSubstr;

Op example_op() {
  return program::call_op("look", {program::as(program::at(0), program::Access::kRead, 2)},
                          {program::as(program::at(1), program::Access::kAdd, 1)});
}

TEST(Executors, AKernelThatNobodyExecutesIsNamed) {
  Executors executors;
  executors.add(program::kTouch, Execute([](const Instance&) {}));
  try {
    executors.make(Program{}, example_op());
    FAIL() << "an executor for a kernel that has none";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no executor for the op"));
    EXPECT_THAT(error.what(), HasSubstr("call name look"));
  }
}

TEST(Executors, AreMadeOncePerOpAndSeeIt) {
  Executors executors;
  std::vector<std::string> events;
  executors.add(program::kCall, MakeExecute([&](const Program&, const Op& op) -> Execute {
                  const std::string name = program::attribute<std::string>(op, program::kName);
                  events.push_back("make " + name);
                  return [&events, name](const Instance&) { events.push_back(name); };
                }));
  executors.set_before([&](const Instance&) { events.push_back("before"); });
  const Execute execute = executors.make({}, example_op());
  for (int time = 0; time < 2; ++time) {
    executors.before({});  // as the interpreter does
    execute({});
  }
  EXPECT_THAT(events, ElementsAre("make look", "before", "look", "before", "look"));
}

TEST(Executors, TheLastOneAddedExecutes) {
  Executors executors;
  int first = 0, second = 0;
  executors.add(program::kCall, Execute([&](const Instance&) { ++first; }));
  executors.add(program::kCall, Execute([&](const Instance&) { ++second; }));
  executors.make({}, example_op())({});
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 1);
}

TEST(Instance, OperandsAreFoundBySlot) {
  Program program;
  program.arrays.resize(2);
  program.arrays[1].name = "sum";
  float a = 0, b = 0;
  Instance instance;
  instance.program = &program;
  instance.reads = {{2, program::Access::kRead, 0, 0, 4, &a}};
  instance.writes = {{1, program::Access::kAdd, 1, 0, 4, &b},
                     {1, program::Access::kAdd, 1, 1, 4, &a}};
  EXPECT_EQ(instance.read(2), &a);
  EXPECT_EQ(instance.read(1), nullptr) << "written, not read";
  EXPECT_EQ(instance.write(1), &b) << "the first of two";
  EXPECT_EQ(instance.write(2), nullptr);
  EXPECT_EQ(instance.find_read(0), nullptr);
  ASSERT_NE(instance.find_write(1), nullptr);
  EXPECT_EQ(instance.find_write(1)->access, program::Access::kAdd);
  EXPECT_EQ(instance.array(*instance.find_write(1)).name, "sum");
}

TEST(Instance, IndicesFollowTheLoops) {
  const Op op = program::work_op(program::kForward, {1, 0, 2, 1, 10}, {}, {});
  const program::Loops loops = {3, 4, 0, 0};  // two loops, then the counters
  Instance instance;
  instance.op = &op;
  instance.loops = &loops;
  EXPECT_EQ(instance.index(program::kBlock), 1 + 2 * 3 + 10 * 4);
  EXPECT_EQ(instance.integer(program::kWorkspace), 0);
}

}  // namespace
}  // namespace strait::runtime
