#include "strait/bench/bench_codec.h"

#include <gmock/gmock.h>

#include "strait/base/errors.h"

namespace strait::measure {
namespace {

TEST(BenchCodec, VerifiesAndTimesEveryDirection) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat64}) {
    CodecCase codec_case;
    codec_case.elements = 10'001;
    codec_case.dtype = dtype;
    const std::vector<BenchRow> rows =
        bench_codec(codec_case, {.warmups = 1, .runs = 5, .minimum_run_seconds = 1e-6});
    ASSERT_EQ(rows.size(), dtype == Dtype::kBfloat16 ? 10u : 15u);
    for (const BenchRow& row : rows) {
      EXPECT_EQ(row.failure, "") << row.bench_case.dump();
      EXPECT_EQ(row.bound->name, "memory-copy");
      EXPECT_GT(row.bound->seconds, 0);
      EXPECT_EQ(row.rate_unit, "bytes_per_second");
    }
  }
}

// int8/2048 of 10,001 elements: 10,001 codes and 5 scales beside 40,004 bytes.
TEST(BenchCodec, CountsBytesReadAndWritten) {
  CodecCase codec_case{"int8", "decode-add", 10'001, Dtype::kFloat32};
  const std::vector<BenchRow> rows =
      bench_codec(codec_case, {.warmups = 1, .runs = 5, .minimum_run_seconds = 1e-6});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].work, 10'001 + 20 + 2 * 40'004);
  EXPECT_EQ(rows[0].bench_case.at("codec").as_string(), "int8/2048");
  EXPECT_EQ(rows[0].bench_case.at("direction").as_string(), "decode-add");
}

TEST(BenchCodec, RefusesWhatThereIsNot) {
  const auto message = [](const CodecCase& codec_case) -> std::string {
    try {
      bench_codec(codec_case);
      return "accepted";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(message({"int7", "", 8, Dtype::kFloat32}), ::testing::HasSubstr("int"));
  EXPECT_THAT(message({"int8", "encod", 8, Dtype::kFloat32}), ::testing::HasSubstr(": encode"));
  EXPECT_THAT(message({"int8", "decode-add", 8, Dtype::kBfloat16}),
              ::testing::HasSubstr(": decode"));
}

}  // namespace
}  // namespace strait::measure
