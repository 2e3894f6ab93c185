// A test program whose every rank is an MPI process: started by mpirun (tests/comm/mpi_test.cpp).
// All ranks run the same tests in the same order on one world.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/mpi_ranks/ranks.h"

namespace strait::comm {

Ranks*& Ranks::slot() {
  static Ranks* ranks = nullptr;
  return ranks;
}

std::atomic<int64_t>& Ranks::repeats() {
  static std::atomic<int64_t> repeats = 1;
  return repeats;
}

}  // namespace strait::comm

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  strait::comm::MpiSession session;
  strait::comm::MpiOptions options;
  options.repeats = [] { return strait::comm::Ranks::repeats().load(); };
  const std::string algorithm = argc > 1 ? argv[1] : "";
  // Links so slow that every message between hosts waits for its turn, or none does and yet long
  // ones go in pieces.
  const std::string links = argc > 2 ? argv[2] : "";
  if (links == "narrow") options.rate_of = [](int64_t) { return 1.0; };
  if (links == "slow") options.rate_of = [](int64_t) { return 5e7; };
  for (const auto form :
       {strait::collective::Algorithm::kDirect, strait::collective::Algorithm::kRing,
        strait::collective::Algorithm::kRecursive, strait::collective::Algorithm::kHierarchical})
    if (algorithm == strait::collective::algorithm_name(form)) options.algorithm = form;
  strait::comm::World& world = session.world(strait::comm::test_cluster(session.size()), options);
  strait::comm::Ranks ranks{session, world, options};
  strait::comm::Ranks::slot() = &ranks;
  if (session.rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    if (std::getenv("STRAIT_TEST_ALL_RANKS") == nullptr)
      delete listeners.Release(listeners.default_result_printer());
  }
  const int failed = RUN_ALL_TESTS();
  if (failed == 0) return 0;
  world.abort("a test failed");
  session.abandon();
  std::_Exit(1);
}
