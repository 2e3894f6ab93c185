// The cluster file that probe writes reads back; wrong ones name file, line and key.
#include "strait/config/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/config/parse.h"

namespace strait {
namespace {

using testing::HasSubstr;

const std::string kGood =
    "version = 1\nname = \"here\"\nlevels = [\n  { name = \"pair\", size = 2, gb_per_second = "
    "20.0, "
    "latency_microseconds = 1.5, links = 3 },\n  { name = \"world\", size = 0, gb_per_second = "
    "0.125, "
    "latency_microseconds = 50, processor_share = 0.25 },\n]\n[rates]\nfp32_flops_per_second = "
    "1.5e11\nbf16_model_flops_per_second = 1e11\nfp64_attention_flops_per_second = "
    "2e10\nbf16_attention_flops_per_second = 8e10\nbf16_weights_per_second = "
    "9e8\ncodec_bytes_per_second = 4e9\nmemory_bytes = "
    "1024\n"
    "cores_per_rank = 2\nshares_cores = false\n";

TEST(ClusterFile, IsRead) {
  const Cluster cluster = parse_cluster_file(kGood, "c.toml", 8);
  EXPECT_EQ(cluster.name, "here");
  ASSERT_EQ(cluster.levels.size(), 2u);
  EXPECT_EQ(cluster.levels[0].links, 3);
  EXPECT_DOUBLE_EQ(cluster.levels[0].bytes_per_second, 20e9);
  EXPECT_EQ(cluster.levels[1].size, 4);
  EXPECT_DOUBLE_EQ(cluster.levels[1].latency_seconds, 50e-6);
  EXPECT_EQ(cluster.flops_per_second_fp32, 1.5e11);
  EXPECT_GT(cluster.flops_per_second_fp64, 0);  // missing: localhost's
  EXPECT_EQ(cluster.levels[0].processor_share, 0.0);
  EXPECT_EQ(cluster.levels[1].processor_share, 0.25);
  EXPECT_EQ(cluster.model_flops_per_second(Dtype::kBfloat16), 1e11);
  EXPECT_EQ(cluster.model_flops_per_second(Dtype::kFloat32), 1.5e11);  // missing: as products
  EXPECT_EQ(cluster.attention_flops_per_second(Dtype::kFloat64), 2e10);
  EXPECT_EQ(cluster.attention_flops_per_second(Dtype::kBfloat16), 8e10);
  EXPECT_EQ(cluster.attention_flops_per_second(Dtype::kFloat32), 1.5e11);  // missing: as blocks
  EXPECT_EQ(cluster.weight_seconds(Dtype::kBfloat16, 18e8), 2);
  EXPECT_EQ(cluster.weight_seconds(Dtype::kFloat32, 18e8), 0);  // missing: at no cost
  EXPECT_EQ(cluster.codec_bytes_per_second, 4e9);
  const Cluster again = parse_cluster_file(print_cluster_file(cluster), "again.toml", 8);
  EXPECT_EQ(again.levels[1].processor_share, 0.25);
  EXPECT_EQ(again.model_flops_per_second(Dtype::kBfloat16), 1e11);
  EXPECT_EQ(again.attention_flops_per_second(Dtype::kFloat64), 2e10);
  EXPECT_EQ(again.attention_flops_per_second(Dtype::kBfloat16), 8e10);
  EXPECT_EQ(again.attention_flops_per_second_fp32, 0);
  EXPECT_EQ(again.weights_per_second_bf16, 9e8);
  EXPECT_EQ(again.codec_bytes_per_second, 4e9);
  EXPECT_EQ(cluster.memory_bytes, 1024);
  EXPECT_EQ(cluster.cores_per_rank, 2);
  EXPECT_FALSE(cluster.shares_cores);
}

TEST(ClusterFile, SaysWhoTakesTurnsOnCores) {
  const std::string both = kGood + "ranks_per_machine = 4\ncores_per_machine = 2\n";
  const Cluster cluster = parse_cluster_file(both, "c.toml", 8);
  EXPECT_DOUBLE_EQ(cluster.alone_speed(), 4);  // two threads on half a core
  const Cluster again = parse_cluster_file(print_cluster_file(cluster), "again.toml", 8);
  EXPECT_EQ(again.ranks_per_machine, 4);
  EXPECT_EQ(again.cores_per_machine, 2);
  EXPECT_EQ(parse_cluster_file(kGood, "c.toml", 8).alone_speed(), 1);
}

TEST(ClusterFile, PrintedReadsBack) {
  for (const std::string& name : cluster_preset_names())
    for (const int64_t ranks : {1, 4, 16}) {
      ClusterOptions options;
      options.preset = name;
      const Cluster cluster = make_cluster(options, ranks);
      const std::string text = print_cluster_file(cluster);
      const Cluster again = parse_cluster_file(text, "c.toml", ranks);
      EXPECT_EQ(again.name, name);
      EXPECT_EQ(print_cluster_file(again), text);
      EXPECT_EQ(again.flops_per_second_bf16, cluster.flops_per_second_bf16);
      EXPECT_EQ(again.memory_bytes, cluster.memory_bytes);
      EXPECT_EQ(again.shares_cores, cluster.shares_cores);
      ASSERT_EQ(again.levels.size(), cluster.levels.size());
      for (size_t i = 0; i < cluster.levels.size(); ++i) {
        EXPECT_EQ(again.levels[i].size, cluster.levels[i].size);
        // Through GB/s and microseconds: one rounding each way.
        EXPECT_NEAR(again.levels[i].bytes_per_second, cluster.levels[i].bytes_per_second,
                    1e-15 * cluster.levels[i].bytes_per_second);
        EXPECT_NEAR(again.levels[i].latency_seconds, cluster.levels[i].latency_seconds,
                    1e-15 * cluster.levels[i].latency_seconds);
      }
    }
}

TEST(ClusterFile, BadFilesNameFileLineAndKey) {
  struct Case {
    const char* text;
    int64_t line;
    const char* key;
    const char* message;
  };
  const std::string level = "levels = [{ name = \"world\", gb_per_second = 1.0 }]\n";
  const Case cases[] = {
      {"versoin = 1\n", 1, "versoin", "nearest is \"version\""},
      {"version = 2\n", 1, "version", "nearest is 1"},
      {"version = \"1\"\n", 1, "version", "wants an integer, found a string"},
      {"name = 1\n", 1, "name", "wants a string"},
      {"version = 1\nlevels = 3\n", 2, "levels", "wants a list of levels"},
      {"rates = 1\n", 1, "rates", "wants a table"},
      {"[rates]\nfp23_flops_per_second = 1.0\n", 2, "rates.fp23_flops_per_second",
       "nearest is \"rates.fp32_flops_per_second\""},
      {"[rates]\nfp32_flops_per_second = 0\n", 2, "rates.fp32_flops_per_second", "above 0"},
      {"[rates]\nfp32_flops_per_second = true\n", 2, "rates.fp32_flops_per_second",
       "wants a number"},
      {"[rates]\nfp32_attention_flops_per_second = -8e10\n", 2,
       "rates.fp32_attention_flops_per_second", "= -80000000000 must be above 0"},
      {"[rates]\nbf16_attention_flops_per_second = inf\n", 2,
       "rates.bf16_attention_flops_per_second", "above 0"},
      {"[rates]\nfp32_flops_per_second = 1e-300\n", 2, "rates.fp32_flops_per_second",
       "= 1e-300; the nearest valid value is 1"},
      {"[rates]\nmemory_bytes_per_second = 1e300\n", 2, "rates.memory_bytes_per_second",
       "= 1e+300; the nearest valid value is 1e+24"},
      {"[rates]\nfp64_attention_flops_per_second = \"fast\"\n", 2,
       "rates.fp64_attention_flops_per_second", "wants a number, found a string"},
      {"[rates]\nfp32_atention_flops_per_second = 1.0\n", 2, "rates.fp32_atention_flops_per_second",
       "nearest is \"rates.fp32_attention_flops_per_second\""},
      {"[rates]\nmemory_bytes = 1.5\n", 2, "rates.memory_bytes", "wants an integer"},
      {"[rates]\ncores_per_rank = 0\n", 2, "rates.cores_per_rank", "nearest valid value is 1"},
      {"[rates]\ncores_per_machine = 2\n", 1, "rates", "belong together"},
      {"[rates]\nranks_per_machine = 2\n", 1, "rates", "belong together"},
      {"[rates]\nshares_cores = 1\n", 2, "rates.shares_cores", "wants a boolean"},
  };
  for (const Case& bad : cases) {
    const bool has_levels = std::string(bad.text).find("levels") != std::string::npos;
    const std::string text = has_levels || bad.text[0] != '[' ? bad.text : level + bad.text;
    try {
      parse_cluster_file(text, "c.toml", 2);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().file, "c.toml");
      EXPECT_EQ(error.place().line, bad.line + (text == bad.text ? 0 : 1)) << text << error.what();
      EXPECT_EQ(error.place().key, bad.key);
      EXPECT_THAT(error.what(), HasSubstr(bad.message));
    }
  }
  EXPECT_THROW(parse_cluster_file("version = 1\n", "c.toml", 2), UserError);
}

TEST(ClusterFile, LevelsBeyondAnyMachineNameFileLineAndKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"gb_per_second = 1e-300", "gb_per_second = 1e-300; the nearest valid value is 1e-09"},
      {"gb_per_second = 1e300", "gb_per_second = 1e+300; the nearest valid value is 1e+15"},
      {"gb_per_second = 1.0, latency_microseconds = 1e300",
       "latency_microseconds = 1e+300; the nearest valid value is 1e+12"}};
  for (const auto& [members, message] : cases) {
    const std::string levels = std::string("[{ name = \"world\", ") + members + " }]";
    try {
      parse_cluster_file("version = 1\nlevels = " + levels + "\n", "c.toml", 2);
      ADD_FAILURE() << "accepted: " << levels;
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().file, "c.toml");
      EXPECT_EQ(error.place().line, 2);
      EXPECT_EQ(error.place().key, "levels");
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
    EXPECT_THROW(resolve_cluster(parse_run("[cluster]\nlevels = " + levels + "\n", "r.toml"), 2),
                 UserError);
  }
}

TEST(ClusterFile, IsResolvedFromARun) {
  const std::string path = std::filesystem::temp_directory_path() / "strait_cluster_file_test.toml";
  write_file_atomically(path, kGood);
  const auto run = parse_run("", "run.toml", {cluster_setting(path)});
  EXPECT_EQ(resolve_cluster(run, 4).name, "here");
  EXPECT_EQ(resolve_cluster(run, 4).levels[1].size, 2);
  std::filesystem::remove(path);
  EXPECT_EQ(resolve_cluster(parse_run("", "", {"cluster.preset=alps"}), 4).levels[0].size, 4);
}

}  // namespace
}  // namespace strait
