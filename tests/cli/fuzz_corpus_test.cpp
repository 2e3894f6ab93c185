// Replays the stored inputs of the libFuzzer targets of the command line and of what needs no data.
#include "tests/fuzz/replay.h"

#define LLVMFuzzerTestOneInput command_line_fuzz_one_input
#include "tests/fuzz/command_line_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput flight_record_fuzz_one_input
#include "tests/fuzz/flight_record_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput gzip_fuzz_one_input
#include "tests/fuzz/gzip_fuzz.cpp"
#undef LLVMFuzzerTestOneInput

namespace {

using strait::testing::replay;

TEST(FuzzCorpus, CommandLine) {
  EXPECT_GE(replay("command_line", command_line_fuzz_one_input), 80);
}

TEST(FuzzCorpus, FlightRecord) {
  EXPECT_GE(replay("flight_record", flight_record_fuzz_one_input), 1);
}

TEST(FuzzCorpus, Gzip) { EXPECT_GE(replay("gzip", gzip_fuzz_one_input), 4); }

}  // namespace
