// A codec is worth its rounding only where links are slow.
#include "strait/plan/codec_advice.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/config/parse.h"
#include "strait/predict/predict.h"
#include "strait/sim/simulate.h"

namespace strait {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

/// Advice for 4 ranks on 2 hosts whose link moves so many gigabytes per second.
std::vector<std::string> advice(const std::string& gigabytes, std::vector<std::string> sets) {
  sets.push_back(
      "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 1000.0, latency_microseconds = "
      "0.1 }, "
      "{ name = \"world\", size = 0, gb_per_second = " +
      gigabytes + ", latency_microseconds = 0.1 }]");
  const strategy::Design design = strategy::make_design(
      parse_run("[model]\npreset = \"nano-char\"\n", "test.toml", sets), 4, 65);
  return plan::codec_advice(design, sim::simulate(design.steady().front(), design.cluster).seconds);
}

TEST(CodecAdvice, NamesEveryCodecThatTheLinksDoNotNeed) {
  const auto fast = advice("1000.0", {"placement.preset=zero++"});
  EXPECT_THAT(fast, SizeIs(2));
  EXPECT_THAT(fast, Contains(HasSubstr("placement.codecs.weights is predicted to bring nothing")));
  EXPECT_THAT(fast, Contains(HasSubstr("placement.codecs.gradients")));
  EXPECT_THAT(advice("1000.0", {"placement.preset=zero-topo"}),
              Contains(HasSubstr("placement.codecs.update")));
}

TEST(CodecAdvice, SaysNothingWhereLinksAreSlowOrNoCodecIsNamed) {
  EXPECT_THAT(advice("0.01", {"placement.preset=zero++"}), IsEmpty());
  EXPECT_THAT(advice("0.01", {"placement.preset=zero-topo"}), IsEmpty());
  EXPECT_THAT(advice("1000.0", {"placement.preset=zero3"}), IsEmpty());
  EXPECT_THAT(advice("1000.0", {"placement.preset=zero3", "train.precision=bf16"}), IsEmpty());
}

/// The run without the codec is another run, not the same one under another key; and where a codec
/// cannot be left out nothing is said.
TEST(CodecAdvice, OfLayersIsComparedWithNone) {
  const std::vector<std::string> coded = {"placement.preset=ddp", "compression.codec=qsgd4/512"};
  EXPECT_THAT(advice("0.001", coded), IsEmpty());
  EXPECT_THAT(advice("1000.0", coded),
              testing::ElementsAre(HasSubstr("compression.codec is predicted to bring nothing")));
  std::vector<std::string> plain = coded;
  plain.insert(plain.end(), {"train.precision=bf16", "placement.codecs.gradients=none"});
  EXPECT_THAT(advice("0.001", plain), IsEmpty());
  EXPECT_THAT(advice("0.0125", {"placement.preset=zero-topo", "train.precision=bf16",
                                "placement.codecs.weights=int8/2048"}),
              IsEmpty());
}

/// Both steps have the documents of the data: what is said of the run without a codec is what a
/// run without it is predicted to take.
TEST(CodecAdvice, OfDocumentsComparesTheSameBatch) {
  const auto design_of = [](const std::string& codec, std::optional<Corpus>& corpus) {
    const strait::Run run = parse_run(
        "", "test.toml",
        {"model.preset=nano-char", "model.shape.context=1024", "train.global_batch_tokens=16384",
         "data.path=synthetic:lengths/lognormal-2k/scale=0.1/tokens=200000", "placement.preset=ddp",
         "placement.codecs.gradients=" + codec,
         "cluster.levels=[{ name = \"world\", size = 0, gb_per_second = 1000.0 }]"});
    corpus = strategy::design_corpus(run);
    return strategy::make_design(run, 4, 256, 0, &*corpus);
  };
  std::optional<Corpus> corpus;
  const auto seconds_of = [](const strategy::Design& design) {
    return predict::simulate(design).seconds;
  };
  const double plain = seconds_of(design_of("none", corpus));
  const strategy::Design coded = design_of("int8", corpus);
  EXPECT_THAT(plan::codec_advice(coded, seconds_of(coded), &*corpus),
              testing::ElementsAre(HasSubstr(fmt::format("{:.4g} s without", plain))));
}

}  // namespace
}  // namespace strait
