#include "strait/verify/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "strait/base/errors.h"
#include "strait/program/roll.h"
#include "tests/program/example_programs.h"
#include "tests/sanitized.h"

namespace strait::program {
namespace {

using testing::HasSubstr;

std::string list(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) text += problem.kind + ": " + problem.message + "\n";
  return text;
}

/// The n-th op (from 0) that `matches`, in any body of the program.
Op& find(std::vector<Node>& nodes, int& n, const std::function<bool(const Op&)>& matches,
         bool erase = false) {
  static Op missing;
  for (size_t k = 0; k < nodes.size(); ++k) {
    if (Op* op = std::get_if<Op>(&nodes[k])) {
      if (!matches(*op) || n-- != 0) continue;
      if (erase) nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(k));
      n = -1;
      return erase ? missing : *op;
    }
    Op& found = find(std::get<Repeat>(nodes[k]).body, n, matches, erase);
    if (n < 0) return found;
  }
  return missing;
}
Op& find(Program& program, OpKind kind, int n = 0) {
  return find(program.body, n, [&](const Op& op) { return op.kind == kind; });
}
void drop(Program& program, OpKind kind, int n = 0) {
  find(
      program.body, n, [&](const Op& op) { return op.kind == kind; }, true);
  EXPECT_LT(n, 0) << "no such op";
}

/// Checks that a broken program is refused for the expected reason, in the expected words.
void expect_refused(const std::vector<Program>& classes, const std::string& kind,
                    const std::string& words) {
  const std::vector<Problem> problems = verify(classes);
  ASSERT_FALSE(problems.empty()) << "accepted; expected " << kind;
  EXPECT_EQ(problems[0].kind, kind) << list(problems);
  EXPECT_THAT(problems[0].message, HasSubstr(words));
  EXPECT_THROW(verify_or_throw(classes), InternalError);
}

std::vector<Program> broken(std::vector<Program> classes,
                            const std::function<void(Program&)>& change, size_t rank_class = 0) {
  change(classes[rank_class]);
  return classes;
}

TEST(Verify, AcceptsLegalPrograms) {
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    for (const int64_t blocks : {2, 3, 7}) {
      for (const int64_t micro_batches : {1, 3}) {
        EXPECT_EQ(list(verify(split_program(ranks, blocks, micro_batches))), "");
      }
    }
    for (const int64_t micro_batches : {1, 2, 5}) {
      EXPECT_EQ(list(verify(stage_program(ranks, micro_batches))), "");
    }
    EXPECT_EQ(list(verify(carry_program(ranks))), "");
  }
  EXPECT_NO_THROW(verify_or_throw(split_program(2, 3, 2)));
}

TEST(Verify, MissingGather) {
  const auto classes =
      broken(split_program(2, 4, 2), [](Program& p) { drop(p, OpKind::kAllGather, 0); });
  expect_refused(classes, "read-before-write", "test/steady, rank class 0, loop a.i: ");
  expect_refused(classes, "read-before-write", "reads W[0], which nothing has written");
}

TEST(Verify, MissingGatherOfTheBackward) {
  expect_refused(broken(split_program(2, 4, 1), [](Program& p) { drop(p, OpKind::kAllGather, 2); }),
                 "use-after-free",
                 "reads W[3], but `free W[3]` of loop a comes first and nothing writes it again");
}

TEST(Verify, FreeTooEarly) {
  const auto classes = broken(split_program(2, 4, 1), [](Program& p) {
    Repeat& forward = std::get<Repeat>(std::get<Repeat>(p.body[0]).body[2]);
    std::swap(forward.body[1], forward.body[2]);
  });
  expect_refused(classes, "use-after-free", "reads W[0], but `free W[i]` of loop a.i comes first");
}

TEST(Verify, DoubleFree) {
  const auto classes = broken(split_program(2, 4, 1), [](Program& p) {
    Repeat& forward = std::get<Repeat>(std::get<Repeat>(p.body[0]).body[2]);
    forward.body.push_back(forward.body[2]);
  });
  expect_refused(classes, "double-free",
                 "`free W[i]` frees W[0], which `free W[i]` of loop a.i freed already");
}

TEST(Verify, MissingFree) {
  const auto classes = broken(split_program(2, 4, 1), [](Program& p) {
    std::vector<Node>& step = std::get<Repeat>(p.body[0]).body;
    step.pop_back();
  });
  expect_refused(classes, "not-freed", "value d is written 5 times and freed 4: d[0] of ");
}

TEST(Verify, FreeOfWhatWasNeverWritten) {
  expect_refused(broken(split_program(2, 4, 1),
                        [](Program& p) {
                          p.body.insert(p.body.begin(), make_op(OpKind::kFree, {}, {at(3, 1)}));
                        }),
                 "read-before-write", "frees W[1], which nothing has written");
}

TEST(Verify, ConcurrentWrites) {
  expect_refused(broken(carry_program(2),
                        [](Program& p) {
                          Op again = find(p, OpKind::kAllReduce);
                          again.stream = 2;
                          p.body.emplace_back(again);
                        }),
                 "concurrent-write", "overwrites mean on another stream than");
  expect_refused(broken(carry_program(2),
                        [](Program& p) {
                          find(p, OpKind::kKernel).writes.push_back(overwritten({at(0)})[0]);
                        }),
                 "concurrent-write", "writes master twice");
  expect_refused(broken(carry_program(2),
                        [](Program& p) { find(p, OpKind::kCopy).writes = overwritten({at(0)}); }),
                 "concurrent-write", "reads master while it writes it");
}

TEST(Verify, SwappedCollectivesOfOneClass) {
  std::vector<Program> order = split_program(2, 2, 1);
  order.push_back(order[0]);
  order[0].members = {0};
  order[1].members = {1};
  Op barrier;
  barrier.kind = OpKind::kBarrier;
  barrier.stream = 1;
  barrier.group = 0;
  Op sum = barrier;
  sum.kind = OpKind::kAllReduce;
  sum.reads = {at(2)};
  sum.writes = overwritten({at(2)});
  order[0].body.insert(order[0].body.end(), {barrier, sum});
  order[1].body.insert(order[1].body.end(), {sum, barrier});
  expect_refused(order, "collective-order",
                 "group world, world.0: rank class 0 starts `barrier on world.0` where "
                 "class 1 starts "
                 "`norm = all_reduce(norm) on world.0`");
}

TEST(Verify, CollectivesThatDiffer) {
  const auto two = [] {
    std::vector<Program> classes = split_program(2, 2, 1);
    classes.push_back(classes[0]);
    classes[0].members = {0};
    classes[1].members = {1};
    return classes;
  };
  EXPECT_EQ(list(verify(two())), "");
  expect_refused(broken(
                     two(), [](Program& p) { drop(p, OpKind::kAllReduce); }, 1),
                 "collective-order", "where class 1 has nothing left");
  expect_refused(broken(
                     two(), [](Program& p) { find(p, OpKind::kReduceScatter).codec = "int8"; }, 1),
                 "collective-order", "codec none against int8");
  expect_refused(broken(
                     two(), [](Program& p) { p.arrays[2].dtype = Dtype::kFloat64; }, 1),
                 "collective-order", "fp32 against fp64");
  expect_refused(broken(
                     two(),
                     [](Program& p) {
                       p.arrays[2].partition = {8, 8};
                     },
                     1),
                 "collective-order", "4 elements by 16 against 8 by 16");
}

TEST(Verify, CopiesOfValuesThatAreNotAlike) {
  const auto changed = [](const std::function<void(ValueArray&)>& change) {
    return broken(carry_program(2), [&](Program& p) { change(p.arrays[3]); });
  };
  expect_refused(changed([](ValueArray& array) {
                   array.partition = {3, 3};
                 }),
                 "malformed", "needs 12 elements of scratch on rank 0, which has 3");
  expect_refused(changed([](ValueArray& array) { array.dtype = Dtype::kInt32; }), "malformed",
                 "copies fp32 into i32");
}

TEST(Verify, CodecsThatDoNotExist) {
  const auto coded = [](const std::string& codec) {
    return broken(carry_program(2), [&](Program& p) { find(p, OpKind::kAllReduce).codec = codec; });
  };
  for (const char* codec : {"int8/64", "none:4|int8/64:8@2"})
    EXPECT_EQ(list(verify(coded(codec))), "") << codec;
  expect_refused(coded("nonsense"), "malformed", "unknown codec");
}

/// Of a value into which a rank's part was reduced the other parts are still to be gathered.
TEST(Verify, APartThatIsReadAsAWhole) {
  const auto reduced = [](bool gathered, OpKind used, Lifetime lifetime = Lifetime::kTransient) {
    ProgramBuilder b(4);
    const int x = b.array("x", 1, Lifetime::kResident, 10);
    const int t = b.array("t", 1, lifetime, 10);
    b.add(OpKind::kReduceScatter, {at(x)}, {at(t)}, 1);
    if (gathered) b.add(OpKind::kAllGather, {at(t)}, {at(t)}, 1);
    if (used == OpKind::kKernel)
      b.touch({at(t)}, {});
    else
      b.add(used, {at(t)}, {at(x)}, used == OpKind::kCopy ? kCompute : 1);
    if (lifetime == Lifetime::kTransient) b.free(at(t));
    return std::vector<Program>{b.take()};
  };
  for (const OpKind used : {OpKind::kKernel, OpKind::kAllReduce, OpKind::kCopy}) {
    EXPECT_EQ(list(verify(reduced(true, used))), "");
    EXPECT_EQ(list(verify(reduced(false, used, Lifetime::kResident))), "");
    expect_refused(reduced(false, used), "read-before-write", "has written only this rank's part");
  }
  EXPECT_EQ(list(verify(reduced(false, OpKind::kAllGather))), "");
}

TEST(Verify, Messages) {
  expect_refused(
      broken(stage_program(2, 3), [](Program& p) { drop(p, OpKind::kSend, 2); }),
      "unmatched-message",
      "group chain, world.0: rank class 1 receives 3 messages from rank 0, which sends 2");
  expect_refused(broken(
                     stage_program(2, 3),
                     [](Program& p) {
                       Op& op = find(p, OpKind::kReceive);
                       op.kind = OpKind::kKernel;
                       op.kernel = &kTouch;
                       op.stream = 0;
                       op.group = -1;
                     },
                     1),
                 "unmatched-message", "rank class 0 sends 3 messages to rank 2, which receives 0");
  expect_refused(broken(stage_program(2, 3),
                        [](Program& p) {
                          p.arrays[2].partition = {6, 6};
                        }),
                 "unmatched-message", "6 elements by 6 against 5 by 5");
}

TEST(Verify, WrongPeer) {
  // Three stages in a row; the first sends to the last by mistake.
  const auto chain = [](int64_t peer) {
    std::vector<Program> classes;
    for (int64_t r = 0; r < 3; ++r) {
      ProgramBuilder b(3, {r});
      const int x = b.array("x", 1, Lifetime::kResident, 2);
      if (r > 0) b.receive(at(x), r - 1, 1);
      if (r < 2) b.send(at(x), r == 0 ? peer : r + 1, 1);
      classes.push_back(b.take());
    }
    return classes;
  };
  EXPECT_EQ(list(verify(chain(1))), "");
  expect_refused(chain(2), "unmatched-message",
                 "rank class 0 sends 1 messages to rank 2, which receives 0");
  expect_refused(chain(0), "malformed", "has rank 0 itself as its peer");
  expect_refused(chain(3), "out-of-range", "has peer 3, but group world has positions 0..2");
}

/// Two ranks that send to each other; `order` says whether rank 1 receives before it sends.
std::vector<Program> exchange(bool ordered, bool two_lanes) {
  std::vector<Program> classes;
  for (int64_t r = 0; r < 2; ++r) {
    ProgramBuilder b(2, {r});
    const int x = b.array("x", 2, Lifetime::kResident, 2);
    const int send_lane = two_lanes && r == 1 ? 2 : 1, receive_lane = two_lanes && r == 0 ? 2 : 1;
    if (r == 1 && ordered) b.receive(at(x, 1), 0, receive_lane);
    b.send(at(x, 0), 1 - r, send_lane);
    if (r == 0 || !ordered) b.receive(at(x, 1), 1 - r, receive_lane);
    classes.push_back(b.take());
  }
  return classes;
}

TEST(Verify, SendsInACircle) {
  EXPECT_EQ(list(verify(exchange(true, false))), "");
  EXPECT_EQ(list(verify(exchange(false, true))), "") << "different lanes";
  expect_refused(exchange(false, false), "cycle", "waits for rank class");
}

TEST(Verify, CircleThroughComputeAndAThirdRank) {
  // Each rank computes what it sends on from what it receives; in a ring nobody begins.
  std::vector<Program> classes;
  for (int64_t r = 0; r < 3; ++r) {
    ProgramBuilder b(3, {r});
    const int x = b.array("x", 2, Lifetime::kResident, 2);
    b.receive(at(x, 0), (r + 2) % 3, 1);
    b.touch({at(x, 0)}, {at(x, 1)});
    b.send(at(x, 1), (r + 1) % 3, 1);
    classes.push_back(b.take());
  }
  expect_refused(classes, "cycle", "waits for the first of these");
  EXPECT_THAT(verify(classes)[0].message, HasSubstr("rank class 2 "));
  // The first one begins: legal.
  std::swap(classes[0].body[0], classes[0].body[2]);
  std::swap(classes[0].body[0], classes[0].body[1]);
  EXPECT_EQ(list(verify(classes)), "");
}

TEST(Verify, CircleOfTwoCollectives) {
  // Four ranks, groups in rows and columns; the ranks of the second row run theirs the other way
  // round.
  std::vector<Program> classes;
  for (int64_t row = 0; row < 2; ++row) {
    ProgramBuilder b(4, {2 * row, 2 * row + 1});
    const int rows = b.group("rows", 2, 1), columns = b.group("columns", 2, 2), all = 0;
    const int x = b.array("x", 3, Lifetime::kResident, 2);
    if (row == 1) b.add(OpKind::kAllReduce, {at(x, 1)}, {at(x, 1)}, 1, all);
    b.add(OpKind::kAllReduce, {at(x, 0)}, {at(x, 0)}, 1, columns);
    if (row == 0) b.add(OpKind::kAllReduce, {at(x, 1)}, {at(x, 1)}, 1, all);
    b.add(OpKind::kAllReduce, {at(x, 2)}, {at(x, 2)}, 1, rows);
    classes.push_back(b.take());
  }
  expect_refused(classes, "cycle", "all_reduce");
  for (Program& program : classes)
    find(program.body[0].index() == 0 ? program : program, OpKind::kAllReduce);
}

TEST(Verify, StructuralMistakes) {
  const auto split = [] { return split_program(4, 3, 1); };
  using K = OpKind;
  expect_refused(
      broken(split(), [](Program& p) { find(p, K::kAllGather).writes[0].index.constant = 3; }),
      "out-of-range", "uses W[3], but W has 3 elements");
  expect_refused(
      broken(split(), [](Program& p) { find(p, K::kAllGather, 1).reads[0].index.constant = -1; }),
      "out-of-range", "uses w[-1], but w has 3 elements");
  expect_refused(broken(split(), [](Program& p) { find(p, K::kAllGather).reads[0].array = 99; }),
                 "malformed", "names value array 99 of 7");
  expect_refused(
      broken(split(), [](Program& p) { find(p, K::kAllGather).reads[0].index.loop = 1; }),
      "malformed", "uses a loop variable outside its loop");
  expect_refused(broken(split(), [](Program& p) { find(p, K::kAllGather).stream = 0; }),
                 "malformed", "is communication but stands on compute");
  expect_refused(broken(split(), [](Program& p) { find(p, K::kAllGather).stream = 4; }),
                 "malformed", "is on stream 4 of 4");
  expect_refused(broken(split(), [](Program& p) { find(p, K::kKernel).stream = 1; }), "malformed",
                 "is no communication but stands on a communication stream");
  expect_refused(broken(split(), [](Program& p) { find(p, K::kAllGather).group = 3; }), "malformed",
                 "is among group 3 of 1");
  expect_refused(broken(split(), [](Program& p) { find(p, K::kAllGather).reads.clear(); }),
                 "malformed", "reads 0 values and writes 1, but all_gather reads 1 and writes 1");
  expect_refused(
      broken(split(), [](Program& p) { find(p, K::kFree).writes = overwritten({at(0)}); }),
      "malformed", "frees a value that outlives the program");
  expect_refused(broken(split(), [](Program& p) { find(p, K::kAllGather).partition.grain = 2; }),
                 "malformed", "splits 10 elements by 2 over 4 ranks, which leaves some to nobody");
  expect_refused(broken(split(), [](Program& p) { p.arrays[3].dtype = Dtype::kFloat64; }),
                 "malformed", "moves fp32 into fp64 without a codec");
  expect_refused(broken(split(), [](Program& p) { std::get<Repeat>(p.body[0]).loop = 9; }),
                 "malformed", "repeat a has loop 9");
  // The right op over the wrong group: its parts do not have the sizes of the values.
  expect_refused(broken(split(),
                        [](Program& p) {
                          p.groups.push_back({"half", 2, 1, 0});
                          Op& op = find(p, K::kAllGather);
                          op.group = 1;
                          op.partition = {10, 5};
                        }),
                 "malformed", "needs 5 elements of w on rank 0, which has 3");
  expect_refused(broken(split(),
                        [](Program& p) {
                          p.groups.push_back({"odd", 3, 1, 0});
                        }),
                 "malformed", "group odd of 3 ranks, 1 apart, does not divide a world of 4");
}

TEST(Verify, TransfersReadTheirSourceAndOverwriteOrAddToWhatTheyMake) {
  using K = OpKind;
  const auto written = [](K kind, Access access) {
    return broken(split_program(2, 3, 1),
                  [&](Program& p) { find(p, kind).writes[0].access = access; });
  };
  expect_refused(written(K::kAllGather, Access::kAdd), "malformed", "is said to add what it makes");
  expect_refused(written(K::kAllGather, Access::kUpdate), "malformed",
                 "is said to update what it makes");
  expect_refused(written(K::kAllReduce, Access::kUpdate), "malformed",
                 "is said to update what it makes");
  expect_refused(written(K::kReduceScatter, Access::kRead), "malformed",
                 "is said to read what it makes");
  EXPECT_EQ(list(verify(written(K::kReduceScatter, Access::kWrite))), "");
  EXPECT_EQ(list(verify(written(K::kAllReduce, Access::kAdd))), "");
  expect_refused(broken(split_program(2, 3, 1),
                        [](Program& p) { find(p, K::kAllGather).reads[0].access = Access::kAdd; }),
                 "malformed", "is said to add what it reads");
}

TEST(Verify, CopiesOverwriteOneValueWithOne) {
  const auto copy = [](const std::function<void(Op&)>& change) {
    return broken(carry_program(2), [&](Program& p) { change(find(p, OpKind::kCopy)); });
  };
  expect_refused(copy([](Op& op) { op.writes[0].access = Access::kAdd; }), "malformed",
                 "is said to add what it makes");
  expect_refused(copy([](Op& op) { op.reads[0].access = Access::kUpdate; }), "malformed",
                 "is said to update what it reads");
  expect_refused(copy([](Op& op) { op.reads.clear(); }), "malformed",
                 "reads 0 values and writes 1, but copy reads 1 and writes 1");
}

TEST(Verify, IndicesOfCountersAndTwoLoopsStayInTheirArray) {
  // A loop of three inside one of two, and a value of six.
  const auto verified = [](const Index& index) {
    ProgramBuilder b(1);
    const int x = b.array("x", 6, Lifetime::kResident, 1);
    b.repeat("a", 0, 2);
    b.repeat("i", 0, 3);
    Op& op = b.touch({}, {at(x)});
    op.writes[0].index = index;
    b.end();
    b.end();
    return list(verify({b.take()}));
  };
  const int a = 0, i = 1;
  EXPECT_EQ(verified({0, i, 1, a, 3}), "");
  EXPECT_THAT(verified({1, i, 1, a, 3}), HasSubstr("uses x[6], but x has 6 elements"));
  EXPECT_THAT(verified({2, i, 1, a, -3}), HasSubstr("uses x[-1], but x has 6 elements"));
  EXPECT_EQ(verified({3, i, 1, a, -3}), "");
  EXPECT_EQ(verified({1, i, 1, a, 3, 6}), "") << "the seventh is the first";
  EXPECT_THAT(verified({2, i, 1, a, -3, 6}), HasSubstr("uses x[-1]"))
      << "a remainder may be negative";
  EXPECT_EQ(verified({1, kStepCounter, 1, i, 1, 6}), "");
  EXPECT_THAT(verified({0, kStepCounter, 1, kNoLoop, 0, 7}), HasSubstr("uses x[6]"));
  EXPECT_THAT(verified({0, kRoundCounter, 1}), HasSubstr("a counter without a modulo"));
  EXPECT_THAT(verified({3, kStepCounter, -1, kNoLoop, 0, 6}), HasSubstr("below zero"));
  EXPECT_THAT(verified({-1, kStepCounter, 1, kNoLoop, 0, 6}), HasSubstr("below zero"));
  EXPECT_THAT(verified({0, i, 1, 2, 1}), HasSubstr("uses a loop variable outside its loop"));
}

/// Of `count` buffers, one after another from step to step: fills one, uses and frees another.
std::string alternating(int64_t count, int64_t used, int64_t other_modulo) {
  ProgramBuilder b(1);
  const int buffer = b.array("buffer", count, Lifetime::kTransient, 1);
  Operand filled = at(buffer), taken = at(buffer);
  filled.index = {0, kStepCounter, 1, kNoLoop, 0, count};
  taken.index = {used, kStepCounter, 1, kNoLoop, 0, other_modulo};
  b.touch({}, {filled});
  b.touch({taken}, {});
  b.free(taken);
  return list(verify({b.take()}));
}

TEST(Verify, ProgramsAreFollowedAtEveryValueOfTheirCounters) {
  EXPECT_EQ(alternating(4, 0, 4), "");
  EXPECT_EQ(alternating(4, 4, 4), "") << "once around is the same";
  EXPECT_THAT(alternating(4, 1, 4), HasSubstr("reads buffer[1], which nothing has written"));
  // Legal as long as the step is below two.
  EXPECT_THAT(alternating(4, 0, 2), HasSubstr("reads buffer[0], which nothing has written"));
  EXPECT_THAT(alternating(4, 0, 2), HasSubstr("(in step 2 of round 0)"));
  EXPECT_THAT(alternating(4097, 0, 4097), HasSubstr("repeat after more than 4096 steps"));
}

TEST(Verify, ARootThatMovesWithTheStepStaysInItsGroup) {
  const auto verified = [](const Index& root) {
    ProgramBuilder b(3);
    const int x = b.array("x", 1, Lifetime::kResident, 1);
    b.add(OpKind::kBroadcast, {at(x)}, {at(x)}, 1).peer = root;
    return list(verify({b.take()}));
  };
  EXPECT_EQ(verified({1, kStepCounter, 1, kNoLoop, 0, 3}), "");
  EXPECT_THAT(verified({1, kStepCounter, 1, kNoLoop, 0, 4}), HasSubstr("has peer 3"));
  EXPECT_THAT(verified({1, kStepCounter, 1}), HasSubstr("a counter without a modulo"));
}

TEST(Verify, ClassesMustCoverTheWorldOnce) {
  expect_refused({}, "malformed", "there is no program");
  expect_refused(broken(stage_program(2, 1), [](Program& p) { p.members = {0}; }), "malformed",
                 "rank 1 is in no class");
  expect_refused(broken(stage_program(2, 1),
                        [](Program& p) {
                          p.members = {0, 2};
                        }),
                 "malformed", "outside the world or in two classes");
  expect_refused(broken(
                     stage_program(2, 1), [](Program& p) { p.ranks = 5; }, 1),
                 "malformed", "has a world of 5 ranks");
  expect_refused(broken(
                     stage_program(2, 1), [](Program& p) { p.streams[1].lane = 7; }, 1),
                 "malformed", "its streams differ");
}

TEST(Verify, LargeProgramsInWellUnderASecond) {
  const std::vector<Program> classes = split_program(1024, 100, 64);
  EXPECT_GT(count_instances(classes[0]), 60000);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(list(verify(classes)), "");
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  RecordProperty("milliseconds", static_cast<int>(elapsed.count() * 1e3));
  EXPECT_LT(elapsed.count(), 1.0 * test::kSlowdown);
}

}  // namespace
}  // namespace strait::program
