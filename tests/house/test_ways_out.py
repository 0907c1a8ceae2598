"""Messages that name a way out, each with the test that goes it."""

from __future__ import annotations

import ast
import re

from tests.support.places import ROOT
from tools.messages import raised

REGISTRY = "tests/spark/test_registry_records.py::test_a_text_is_json_and_an_instant_an_instant_or_there_is_a_problem"
NO_KEY = "tests/checkpoint/test_reader.py::test_what_is_no_key_is_refused_by_name"
NOT_THERE = "tests/checkpoint/test_reader.py::test_a_table_that_is_not_kept_and_one_that_is_not_there_are_refused_by_name"
CLOSED = "tests/checkpoint/test_reader.py::test_a_reader_leaves_nothing_behind_and_says_so_when_it_was_closed"
FOREIGN_FILES = "tests/checkpoint/test_reader.py::test_files_of_another_form_are_refused_by_name"
OTHER_ATTEMPT = "tests/checkpoint/test_reader.py::test_a_segment_of_another_attempt_is_refused"
AS_OF = "tests/checkpoint/test_reader_beside_a_query.py::test_a_table_is_read_as_of_a_time"
EXPORTED = "tests/checkpoint/test_saved_state.py::test_the_command_line_shows_what_is_known_of_a_key_and_exports_everything"
SINKS = "tests/sinks/test_several_sinks.py::test_a_place_that_comes_later_is_refused_and_one_may_be_left_out"
LINES = "tests/files/test_bad_lines_after_start.py::test_what_becomes_of_lines_that_do_not_fit_does_not_bind_a_checkpoint"
PARTITIONS = "tests/checkpoint/test_saved_state.py::test_partitions_halved_and_indexes_rebuilt_the_query_goes_on"
UPGRADE = "integration/test_aggregates.py::test_a_rolling_upgrade_in_two_restarts_loses_nothing_and_shows_nothing_in_between"
OPTION = "tests/jobs/test_ways_out.py::test_an_option_that_is_set_by_the_engine_is_left_to_its_argument"
ANEW = "integration/test_new_topics.py::test_a_topic_made_anew_is_refused_or_read_in_the_place_of_the_one_before"
SECOND = "tests/checkpoint/test_claims.py::test_a_second_query_of_a_name_and_a_checkpoint_without_a_name_are_refused"
FINE_STARTS = "tests/jobs/test_mistakes.py::test_what_a_check_calls_fine_does_start"
OPTIONS = "tests/files/test_options.py::test_an_option_is_taken_when_it_is_as_the_message_says"
BUILDING = "tests/api/test_ways_out_while_building.py::test_the_way_out_that_is_named_is_one"
JOB_FILES = "tests/jobs/test_ways_out.py::test_a_job_file_is_read_when_it_says_what_the_message_says"
UNITS = "tests/jobs/test_ways_out.py::test_a_value_is_read_with_the_unit_that_the_message_names"
TYPES = "tests/jobs/test_ways_out.py::test_a_value_is_read_into_the_type_that_the_message_names"
FORMATS = "tests/jobs/test_ways_out.py::test_a_format_is_taken_when_it_is_what_the_message_says"
LEARNED = "tests/files/test_bad_lines_after_start.py::test_an_expression_is_the_way_out_for_a_new_job"
OUTAGE = "integration/test_postgres_outages.py::test_what_no_repetition_mends_stops_the_query_at_once"
DOCUMENT = "tests/checkpoint/test_begun_with.py::test_a_checkpoint_whose_document_lost_something_is_refused"
_RESTORES = "tests/sinks/test_restored_checkpoint.py::"
STORAGE = "tests/sinks/test_delta_outages.py::test_a_storage_that_refuses_stops_the_query_at_once"
APPEND_ONLY = (
    "tests/sinks/test_delta_outages.py::test_an_append_only_table_stops_the_query_at_once_and_goes_on_when_it_no_longer_is"
)
UPKEEP = "tests/sinks/test_delta.py::test_rows_move_between_partitions_and_files_are_compacted_and_deleted"
CATALOG = "tests/sinks/test_iceberg.py::test_a_catalog_that_cannot_be_had_says_why_and_shows_no_secret"
SPARKS_SINK = "tests/sinks/test_restored_checkpoint.py::test_a_folder_of_sparks_own_sink_that_is_ahead_is_named"

ADDERS = "tests/spark/test_adder_expressions.py::test_expressions_as_adder_and_subtractor"
WRITTEN = "tests/analysis/test_written.py::test_what_cannot_be_read_rightly_is_refused"
FOLDERS = (
    "tests/analysis/test_written.py::test_a_folder_that_a_query_reads_or_another_one_writes_to_is_refused_and_nothing_changes"
)
LOG = "tests/state/test_bucket_store.py::test_a_newer_format_and_a_broken_log_are_refused"
JOB = "tests/jobs/test_job.py::test_a_job_runs_is_checked_and_its_checkpoint_is_bound_to_it"
START_OVER = "integration/test_new_topics.py::test_what_cannot_start_over_says_so"
BACK = "tests/sinks/test_restored_checkpoint.py::test_rows_that_neither_state_nor_target_has_are_not_made_up"
CONNECTOR = "tests/sessions/test_connector.py::test_a_session_with_kafka_has_the_connector_that_fits"
REFUSED = "tests/house/test_mistakes.py::test_what_spark_refuses_has_a_way_out_that_is_one"
GONE = "tests/house/test_mistakes.py::test_what_is_gone_can_be_made_again_or_another_place_be_given"
VERSIONS = "tests/sessions/test_spark_versions.py::test_a_job_that_is_killed_goes_on_there_and_on_the_newest"
SIDES = "tests/sessions/test_abilities.py::test_both_sides_of_spark_connect_are_asked_and_each_is_refused_with_its_own_release"
CONNECT = "integration/test_connect.py::test_what_cannot_be_had_is_refused_by_name"

HABIT = "tests/api/test_inspection.py::test_each_habit_of_dataframes_is_refused_and_what_is_named_is_one"

FED = "tests/testing/test_kits.py::test_what_a_test_does_not_take_is_refused_before_anything_is_processed"
DRIVER = "tests/testing/test_driver.py::test_what_is_wrong_is_refused_by_name_and_the_way_out_is_one"

SEAM = "tests/jobs/test_installed.py::test_the_way_out_that_is_named_is_one"

DELTA = "tests/analysis/test_delta_tables.py::test_what_cannot_be_read_is_refused_and_what_is_named_is_the_way_out"

FEED = "tests/analysis/test_delta_tables.py::test_what_a_feed_cannot_have_is_refused_and_the_ways_out_have_all_rows"

SNAPSHOT = "tests/analysis/test_snapshots.py::test_what_is_no_snapshot_of_a_table_is_refused_and_the_way_out_is_one"
READ_ONCE = "tests/analysis/test_snapshots.py::test_what_a_query_has_read_of_a_snapshot_it_never_reads_again"
BEGUN = "integration/test_topic_order.py::test_a_topic_goes_on_from_a_snapshot_whoever_reads_it"
STORED = "tests/sinks/test_parquet_objects.py::test_a_table_in_an_object_store_is_the_batch_join_through_repeats_and_restores"

WAYS: dict[str, str] = {
    "from_delta: Delta's connector for Spark {} {};": (
        "tests/analysis/test_delta_tables.py::test_a_join_of_two_delta_tables_follows_every_kind_of_commit"
    ),
    "options: {} is from_delta's own, which reads": DELTA,
    "path: Delta table {} does not record its chan": DELTA,
    "schema: Delta table {} has no column {}; name": DELTA,
    "path: the table is read from {}, and would read what it writes: ": DELTA,
    "schema: column {} is {}, and {} in Delta tabl": DELTA,
    "path: a query reads a snapshot from files, and": SNAPSHOT,
    "path: {} is a table of {}, whose folder has": SNAPSHOT,
    "path: {} has no Parquet files that can be read": SNAPSHOT,
    "path: {} has what to_parquet wrote, deletes and": READ_ONCE,
    "with_snapshot: {} is made by an operator; call": SNAPSHOT,
    "with_snapshot: {} has the snapshot {}; put all": SNAPSHOT,
    "with_snapshot: {} begins with the rows of its": FEED,
    "key: the first rows of Delta table {} come in": FEED,
    "with_snapshot: {} has roots=, and another job's": BEGUN,
    "{}, and the files have none of that name; write": SNAPSHOT,
    "{}, and it is {} in the files; write them with": SNAPSHOT,
    "{}: its snapshot's rows come beside newer changes": SNAPSHOT,
    "positions: {} has a snapshot, and its rows no": BEGUN,
    "snapshot: {} begins without one; make the": "tests/analysis/test_snapshots.py::test_the_driver_feeds_rows_of_a_snapshot",
    "a Table has no {}; call {}": HABIT,
    'deployment="staged" needs a classic Spark': CONNECT,
    'on_new_topic="start-over" needs a classic': CONNECT,
    'emit="{}" needs a classic Spark session, and': CONNECT,
    "{} as an expression needs a classic Spark": CONNECT,
    "fkjoin.testing.Driver needs a classic Spark": DRIVER,
    "preview needs a classic Spark session, and this": (
        "integration/test_connect.py::test_tables_and_files_are_the_batch_join_also_after_a_restart"
    ),
    "verify needs a classic Spark session, and this": PARTITIONS,
    "rebuild needs a classic Spark session, and this": PARTITIONS,
    "rescale needs a classic Spark session, and this": PARTITIONS,
    "fkjoin state rescale needs Spark 4.2 or newer,": VERSIONS,
    "a server of Spark Connect needs Spark 4.1 or": SIDES,
    "path: {} is relative, and client and server": CONNECT,
    "remote: {} is a server with a master of its": CONNECT,
    "remote: {} is no address of a server; write": CONNECT,
    "remote: this process has a session at {}:": CONNECT,
    "remote: no server answers at {} ({}); start": "tests/house/test_extras.py::test_an_extra_has_what_is_needed",
    "{} cannot be set in a session at {}: start": CONNECT,
    "spark: spark.remote: jobs need a classic": CONNECT,
    "spark: this process has Spark Connect, and": "integration/test_connect.py::test_the_session_that_is_there_is_completed",
    "kafka: {} has its own jars: start the server": CONNECT,
    "{}, which Spark does not read: make it bigint": (
        "tests/files/test_parquet_types.py::test_what_spark_has_no_type_for_is_its_number_or_refused"
    ),
    "path: {} cannot be opened, and its types not": (
        "tests/files/test_parquet_types.py::test_a_file_whose_types_cannot_be_compared_is_refused"
    ),
    "path: the types of {} cannot be compared with": (
        "tests/files/test_parquet_types.py::test_a_file_whose_types_cannot_be_compared_is_refused"
    ),
    "{}; give it that type, and convert it with": (
        "tests/files/test_parquet_types.py::test_a_kind_that_spark_misreads_is_refused_and_the_type_that_is_named_is_read"
    ),
    "checkpoints: {} belongs to a query that reads none": (
        "integration/test_join.py::test_internal_topics_keep_their_records_and_a_new_query_needs_the_first_ones"
    ),
    "checkpoints: none belongs to a query that reads {};": (
        "integration/test_join.py::test_internal_topics_keep_their_records_and_a_new_query_needs_the_first_ones"
    ),
    "internal topic {} begins at offset {} of": (
        "integration/test_join.py::test_internal_topics_keep_their_records_and_a_new_query_needs_the_first_ones"
    ),
    "{}{}: {} is not a number from 1; write one,": (
        "integration/test_join.py::test_internal_topics_keep_their_records_and_a_new_query_needs_the_first_ones"
    ),
    "a Table has no items; ask for {} in table.columns": "tests/api/test_inspection.py::test_a_column_is_named_and_not_taken",
    "make a Table with Table.from_files, from_kafka": "tests/api/test_inspection.py::test_a_table_is_not_made_by_its_class",
    "{}: {} is {}, a number is needed; cast it": BUILDING,
    'emit: "{}" is for windows; give it to group_': BUILDING,
    "materialize: {} is of windows, which leave t": BUILDING,
    "window: size and slide must be longer than n": BUILDING,
    "slide: {} is longer than the size, {}: rows ": BUILDING,
    "slide: a row would be in more than {} window": BUILDING,
    "key: there are two windows; give one, and gr": BUILDING,
    "emit: a window is sent when it closes, and {": BUILDING,
    "grace: {} is less than nothing; give an inte": BUILDING,
    "ahead: {} is less than nothing; give an inte": BUILDING,
    'idle: {} is too short; give at least "{} sec': BUILDING,
    "trigger: {} is longer than the idle time of {": BUILDING,
    "deployment: windows close in one query; leav": BUILDING,
    "key: the window's time {} is {}; write cast(": BUILDING,
    'emit: "{}" is for windows; put fkjoin.window': BUILDING,
    "emit: {} is held back, and its rows would co": BUILDING,
    "key: {} is of windows itself; group the tabl": BUILDING,
    "key: {} is staged, and windows close in one ": BUILDING,
    "key: the table {} has {}; give it timestamp=": BUILDING,
    "{}: it is for windows; put fkjoin.window(…) ": BUILDING,
    "{}: an expression knows no windows; give a P": BUILDING,
    "{}: {}, the aggregate is {}: cast it, or": BUILDING,
    "{}: {} is {}, which has no order here; cast": BUILDING,
    "{} of group {}: adder or subtractor returned": (
        "tests/folds/test_user_aggregates.py::test_what_is_not_of_the_aggregates_type_is_named_with_its_group"
    ),
    "{} of group {} does not fit into {}: cast": (
        "tests/folds/test_aggregates.py::test_a_sum_that_does_not_fit_stops_and_names_the_group"
    ),
    "timestamp: {} is {}, a timestamp or bigint": LEARNED,
    "deleted: {} is {}, a boolean is needed: write": LEARNED,
    "{}. The columns of {} were learned: give schema=": (
        "tests/checkpoint/test_kept_columns.py::test_a_query_goes_on_with_the_columns_that_the_command_prints"
    ),
    "version: {} is {}, whole numbers are needed": LEARNED,
    "column: {} has a column {} already; choose": BUILDING,
    "{}: {} is no aggregate; give it as table": BUILDING,
    "{}: {} is given twice, or another has its": BUILDING,
    "{}: {} is grouped by {}, and {} by {}; make": BUILDING,
    "{}: another table has the column {} too;": BUILDING,
    "{}: {} is called with ({}); let it take these": BUILDING,
    "name: two sources of this {} are called {}": BUILDING,
    "{}: {} is merged with itself, or another": BUILDING,
    "{} cannot be written to: {}; make that folder": GONE,
    "{} cannot be opened: {}; give a place that this": REFUSED,
    "checkpoint: {}: the query does not start: {}. Start": REFUSED,
    "settings: Spark refuses one: {}; change it, or": REFUSED,
    "the Spark session was stopped: make a new one": GONE,
    "{}: {} is {} columns where one is needed": BUILDING,
    "{}: name at least one column of {}; it has": BUILDING,
    "{}: {} is {}, and keys are compared byte": BUILDING,
    "schema: {} has no column {}; its header is": BUILDING,
    "path: {} has several columns {} in its header": BUILDING,
    "path: column {} of {} comes from {} now, and did": (
        "tests/files/test_folder_columns.py::test_a_column_that_moves_between_lines_and_folders_is_refused"
    ),
    "condition: {} is {}, a boolean is needed": BUILDING,
    'path: {} {}: give format="json", "parquet"': BUILDING,
    "path: {} does not exist; create the folder first": BUILDING,
    "path: {} cannot be read to learn its columns": BUILDING,
    "path: {} has files of several kinds: give": BUILDING,
    "schema: column {} is {}, and Spark's JSON": BUILDING,
    "right: timestamps are {} here and {} in left": BUILDING,
    "{}: {} column{} given, but the key of {} has": BUILDING,
    "{}: {} of {} is {}, but key column {} of {}": LEARNED,
    "right: {} is joined with itself, or another": BUILDING,
    "right: the key of {} is {}, and that of {} is": BUILDING,
    "right: the key of {} is ({}), and that of {} is": BUILDING,
    "deployment: a join by primary key is one stage": BUILDING,
    "spread: {} is not a number from 1 to {}, the": (
        "tests/api/test_joins.py::test_left_rows_of_one_foreign_key_may_be_spread_over_buckets"
    ),
    "spread: partitions of topics say where rows": BUILDING,
    "checkpoint: {} is no folder of a query's own;": SECOND,
    "query_name: a query called {} runs in this": SECOND,
    "feed: a change of side {} has no place here;": FED,
    "{}: {} is no text; here a key is one text: name": (
        "tests/testing/test_kits.py::test_several_columns_for_a_key_that_is_one_text_are_refused_when_the_test_is_made"
    ),
    'how: {} is not one of {}; write "{}"': (
        "tests/testing/test_kits.py::test_a_word_of_sparks_for_how_is_refused_with_what_to_write"
    ),
    "how: {} is not one of {}; swap the two tables, and": (
        "tests/testing/test_kits.py::test_a_right_join_is_a_left_one_of_swapped_tables"
    ),
    "keys: {} is one key: give it to get, or": (
        "tests/checkpoint/test_reader.py::test_one_key_in_the_place_of_several_is_refused"
    ),
    "a Grouped has no {}; write .agg(…) first": (
        "tests/api/test_inspection.py::test_grouped_rows_are_a_table_when_their_aggregates_are_named"
    ),
    "format: {} cannot have these changes: {};": FINE_STARTS,
    "format: Spark has no {}; {} For a format of": FINE_STARTS,
    "options: {} cannot be written with {}: {}; set": FINE_STARTS,
    "options: {} is {}: give a whole number from {}": OPTIONS,
    "options: {} is {}: give one of {}": OPTIONS,
    "log: {} cannot be written to: {}; make room": "tests/jobs/test_follower.py::test_a_log_on_a_full_disk_is_named",
    "checkpoint: {} is in use by query {} of this": SECOND,
    "log: {} is no file that can be written to;": FINE_STARTS,
    "{}.path: this is the folder of {}, too; give": FINE_STARTS,
    "spread: a row has one partner by primary key;": BUILDING,
    "agg: name each column, such as agg": BUILDING,
    "agg: {} is not among the first {} columns, as": (
        "tests/folds/test_members.py::test_a_column_with_entries_is_among_the_first_256"
    ),
    "returns: give the aggregate's Spark type": BUILDING,
    "{}: a column is called {}, as the aggregate": ADDERS,
    "key: files have columns; name those that": "tests/jobs/test_ways_out.py::test_files_have_a_key_of_columns_that_are_named",
    "{}.{}: a table has this name already; choose": JOB_FILES,
    "give filter, columns, or both (the filter": JOB_FILES,
    "give group_by, window, or both": JOB_FILES,
    "sinks: those of {} are one query in {}/{}": (
        "tests/sinks/test_several_sinks.py::test_a_jobs_sinks_are_where_they_were_begun"
    ),
    "{}: the staged deployment joins tables read": BUILDING,
    "joiner: left table {} has no columns besides": BUILDING,
    '{} is a number without a unit; give units={"…"': UNITS,
    "{} counts {} of another kind (it is a {})": TYPES,
    "{} has years or months, which have no fixed": TYPES,
    'a text may be base64 or hex; give units={"…"': UNITS,
    "{} {} are no time of day; take a bigint or": TYPES,
    "{} {} are no whole day; take a timestamp": TYPES,
    '{} may be base64 or a number; give units={"…"': UNITS,
    '{}: {} is not a format: give "string", "bytes"': FORMATS,
    "{}: a format is needed, this is a {}; see": FORMATS,
    "{}: schema {} is not a list of columns, such": BUILDING,
    "{} writes one column of text or bytes, these": BUILDING,
    "Json: the schema has a column {} already": BUILDING,
    "Debezium: a key's column cannot be called": BUILDING,
    "internal topic {} has {} partitions, {} are": (
        "integration/test_join.py::test_races_converge_when_internal_records_are_delayed_doubled_and_reordered"
    ),
    "topic {} was created again and has no records": ANEW,
    "options: {} is set by fkjoin; give it as": OPTION,
    "{}: {} in a text column; give the column": REGISTRY,
    "{}: {} is an instant; take a timestamp column": REGISTRY,
    "{}: bytes are no text; take a binary column": REGISTRY,
    "Registry: to write, give write_schema= and": BUILDING,
    "Registry: fkjoin reads Protobuf and does not": BUILDING,
    "{} gives schema {} as a text, and no": (
        "tests/spark/test_protobuf_schemas.py"
        "::test_a_registry_that_gives_only_texts_stops_the_batch_and_one_with_descriptors_does_not"
    ),
    "Debezium: inner: events in Protobuf are not": "tests/kafka/test_debezium_avro.py::test_mistakes_are_told",
    "{}: {} is {}; give the column the type": REGISTRY,
    "{} refuses: {}. The batch is not lost. It may": (
        "tests/spark/test_protobuf_schemas.py"
        "::test_a_registry_that_refuses_descriptors_is_told_apart_from_one_that_refuses_the_login"
    ),
    "{} refuses: {}. The batch is not lost. See to": (
        "tests/spark/test_schema_registry_access.py::test_an_outage_and_a_refusal_stop_the_batch_and_make_no_dead_letters"
    ),
    "{}: a {} column cannot have {} exactly; take": REGISTRY,
    "{}: a {} column has no number as great as {}": REGISTRY,
    "Registry: JSON has no {}, and {} is one; write": (
        "tests/spark/test_schema_registry_access.py::test_a_column_that_json_has_no_type_for_is_refused_before_the_start"
    ),
    "{} does not have the schema to write under": (
        "tests/spark/test_schema_registry_access.py::test_a_schema_is_not_registered_where_that_is_switched_off"
    ),
    "Registry: schema: the columns to take are": (
        "tests/spark/test_schema_registry_access.py::test_mistakes_are_told_when_the_format_is_made"
    ),
    "Debezium: inner: leave out its schema and": "tests/kafka/test_debezium_avro.py::test_mistakes_are_told",
    "{}: {} is a clock without a zone; take a": REGISTRY,
    "upgrade_from: {} is not an older wire version": UPGRADE,
    "deployment: the staged deployment aggregates": BUILDING,
    "{}: {} is a format to read only; write String": BUILDING,
    "on_new_topic: with roots= rows are of the": START_OVER,
    "version: with roots=, the positions in the": START_OVER,
    "kafka: this process has a JVM without Spark's": CONNECTOR,
    "{}: {} is {}, and maps cannot be compared": BUILDING,
    "{}: {} is {}, text or binary is needed; cast": BUILDING,
    "having: {}, a boolean is needed: write": BUILDING,
    "having: only Spark can evaluate {}; write": BUILDING,
    "{} is no setting of Spark: write": JOB_FILES,
    "headers: the value has a column 'headers'": START_OVER,
    "positions: the key or the value has a column": START_OVER,
    "{}: column {} is {}, which could not be read": (
        "tests/sinks/test_types.py::test_what_would_not_come_back_from_json_is_refused"
    ),
    "{}: the {} of {} is {}, and that of {} is": BUILDING,
    "{}: {} is the name of a column that results": BUILDING,
    "{}: column {} is already there as the key": BUILDING,
    "{}: name at least one column or expression": BUILDING,
    "{}: {} is not the plain name of a column": BUILDING,
    '{}: a table with on_new_topic="start-over"': START_OVER,
    "a stored record has format {}, this release": (
        "tests/checkpoint/test_saved_state.py::test_what_is_wrong_with_a_store_is_named"
    ),
    "type {} has no byte form; cast it, or leave": "tests/codec/test_byte_formats.py::test_a_type_without_byte_form_is_named",
    "checkpoint: {} was made with {} = {}, the": JOB,
    "checkpoint: {} is of a query that writes": SINKS,
    "sinks: name one at least, such as fkjoin": BUILDING,
    "sinks: {} is none of those that {} was last": SINKS,
    "sinks: a {} is none; give sinks of fkjoin": BUILDING,
    "checkpoint: {} is of a query with one sink": (
        "tests/sinks/test_several_sinks.py::test_what_cannot_be_is_said_before_anything_runs"
    ),
    "{} lacks the columns {} (it has {}): add them": "tests/sinks/test_delta.py::test_a_table_without_the_columns_is_refused",
    "{} lacks the columns {}, and has ones that differ": "tests/sinks/test_delta.py::test_columns_are_added_on_request",
    "partition_by: there is no column {}; name one": (
        "tests/sinks/test_parquet_and_delta.py::test_a_partition_column_that_is_not_there_is_refused_by_name"
    ),
    "Iceberg table {} cannot be made: {} names no": (
        "tests/sinks/test_iceberg.py::test_a_catalog_without_a_place_for_files_is_refused"
    ),
    "{} cannot be made for {}: {}": ("tests/sinks/test_parquet_and_delta.py::test_a_table_that_cannot_be_made_is_refused"),
    "partition_by: {} exists, parti": UPKEEP,
    "{}: {} is no number of batches; leave it out": UPKEEP,
    "Iceberg table {} cannot be made for {}: {}": ("tests/sinks/test_iceberg.py::test_a_table_that_cannot_be_made_is_refused"),
    "path: {} was restored, and checkpoint {} has": (
        f"{_RESTORES}test_who_has_read_what_was_set_aside_is_refused_and_who_has_not_goes_on"
    ),
    "{} has {} of the query, which is about to": (
        "tests/testing/test_sink_contract.py::test_a_query_that_had_no_batch_since_its_start_writes_nothing_after_a_restore"
    ),
    "{} {}: restore this file from the last backup": DOCUMENT,
    "checkpoint: {} is of no query: give that": f"{_RESTORES}test_what_cannot_be_restored_is_said",
    "sinks: the query of {} has one; give": f"{_RESTORES}test_what_cannot_be_restored_is_said",
    "{} has a constraint that a row breaks: {}. Leave": (
        "tests/sinks/test_delta.py::test_a_row_that_breaks_a_constraint_stops_the_query_at_once"
    ),
    "catalog: {} cannot be opened: {}. Give its": CATALOG,
    "table: {} is no table of a namespace: write": CATALOG,
    "a row cannot be in {}: {}. Replace such": (
        "tests/sinks/test_parquet_and_delta.py::test_a_null_where_the_target_takes_none_stops_the_batch"
    ),
    "positions: a row that sums up others, has": BUILDING,
    "positions: {} has emit={}, and rows wait for": ("integration/test_broker.py::test_a_merge_says_where_its_rows_came_from"),
    "rows: {} is {}, an array is needed: write": BUILDING,
    "{}, key {}: {}; with on_error=": (
        "tests/api/test_flat_map.py::test_a_row_that_makes_a_key_twice_or_throws_is_a_dead_letter"
    ),
    "returns: it is the type of what a function": BUILDING,
    "cols: {} belongs to the key of {}, which stays;": BUILDING,
    "table {} cannot be kept as fkjoin's table": (
        "integration/test_postgres_types.py::test_the_refusal_names_each_column_and_both_types"
    ),
    "to_postgres: column {} is {}, which no type": (
        "integration/test_postgres_types.py::test_a_type_without_a_counterpart_is_refused_when_the_table_is_built"
    ),
    "{}: a source's changes come as they are read": BUILDING,
    "checkpoint: {} is in use by process {} on": (
        "tests/checkpoint/test_damage.py::test_a_claim_is_refused_while_its_owner_lives"
    ),
    "{} is empty, so that no classes are kept": (
        "tests/sessions/test_class_archive.py::test_a_session_begins_with_what_another_has_kept"
    ),
    "classes cannot be kept in {}: {}; set {}": (
        "tests/sessions/test_class_archive.py::test_a_session_begins_with_what_another_has_kept"
    ),
    "a constant of type {} cannot be used": ADDERS,
    "{} is {}, and is compared byte by byte": (
        "tests/spark/test_adder_expressions.py::test_a_text_with_a_collation_is_refused_and_taken_as_a_string"
    ),
    "{} cannot be evaluated outside of the": ADDERS,
    "division by zero; use try_divide or nullif": "tests/spark/test_adder_expressions.py::test_where_spark_raises_it_raises",
    "division by zero; write if(divisor = 0, null": "tests/spark/test_adder_expressions.py::test_where_spark_raises_it_raises",
    'table {}{}: {}: {}; with on_error="dead-letter"': LINES,
    "the change of key {} has no version: a version": (
        "tests/spark/test_packing.py::test_a_change_without_a_version_is_named_and_a_filter_or_a_number_is_the_way_out"
    ),
    "path: on {}: exactly-once needs folders that": (
        "tests/sinks/test_several_sinks.py::test_what_cannot_be_is_said_before_anything_runs"
    ),
    "path: {} has a folder without a name in it: wr": "tests/sinks/test_parquet_objects.py::test_paths_in_stores_and_secrets",
    "path: the address has a secret in it: leave": "tests/sinks/test_parquet_objects.py::test_paths_in_stores_and_secrets",
    "options: those of an object store, and {} is": STORED,
    "parquet {}: the file of a batch has {} bytes": (
        "tests/sinks/test_parquet_objects.py::test_the_largest_file_is_what_s3_copies_and_smaller_batches_go"
    ),
    "path: a table with the columns {} leaves": BUILDING,
    "path: the table is read from {}, and would read what it writes to": FOLDERS,
    "path: {} has batches of another query ({})": FOLDERS,
    "path: {} has the folder {} already{}, and": BUILDING,
    "{} is {}, fkjoin needs {}: {}. Remove or": (
        "tests/api/test_building.py::test_a_session_with_the_wrong_state_store_is_refused"
    ),
    "checkpoint {} has {}; add --operator with one": EXPORTED,
    "{} keeps only hashes of its rows in {}: start": BACK,
    'record {}-{} offset {}: {}; with on_error="dead-letter"': (
        "tests/spark/test_topic_records.py::"
        "test_the_first_problem_of_a_record_is_told_and_a_query_told_to_fail_names_the_record"
    ),
    "partitions: {} buckets cannot be spread evenly": PARTITIONS,
    "{}: column {} is {}, and the keys of a JSON": (
        "tests/sinks/test_types.py::test_what_would_not_come_back_from_json_is_refused"
    ),
    "out: {} already exists; give a folder that": EXPORTED,
    "name: {} already names an input of this {}": BUILDING,
    "name: two operators of one query count": BUILDING,
    "df: a batch DataFrame has no changes to follow": BUILDING,
    "version: name the columns that order the": BUILDING,
    "{} of {}: a result does not fit; cast to": "tests/spark/test_adder_expressions.py::test_where_spark_raises_it_raises",
    "a record has wire version {}, this release": "tests/kafka/test_wire.py::test_another_wire_version_is_refused_by_name",
    "path: {} has batches of {} checkpoints ({})": WRITTEN,
    "path: {} has no {}, which to_parquet writes beside": WRITTEN,
    "checkpoint: {} was begun in the time zone {}, ": (
        "tests/checkpoint/test_begun_with.py::test_a_start_in_another_time_zone_is_refused_and_goes_on_in_the_one_that_is_named"
    ),
    "the checkpoint was made by another job: {}": (
        "tests/state/test_bucket_store.py::test_another_identity_is_refused_and_says_both"
    ),
    "as_of: {} is no time; give a datetime, or a text": AS_OF,
    "as_of: batch is given, too; give one of them": AS_OF,
    "checkpoint {} has no committed batch{}: give the": NOT_THERE,
    "max_age: {} is no number of seconds; give one": NOT_THERE,
    "the StateReader of {} was closed: make a new": CLOSED,
    "change log segment {} comes from another attempt": OTHER_ATTEMPT,
    "is compressed by neither lz4 nor zstd: set": FOREIGN_FILES,
    "key {} is one value, and the table's key {}: write": NO_KEY,
    "change log segment {} is missing from the": LOG,
    "change log segment {} has format {}, this": LOG,
    "change log meta has format {}, this release": LOG,
    "change log meta has {} bytes, at least {}": LOG,
    "change log segment {} is damaged, its checksum": LOG,
    "change log segment {} is damaged and does": LOG,
    "a type in the checkpoint names the Python": (
        "tests/house/test_trust.py::test_a_type_in_a_checkpoint_cannot_have_a_module_imported"
    ),
    "{} is no format: write": JOB_FILES,
    "give either {}": JOB_FILES,
    "{}: {}:{} cannot be used ({}); choose": "tests/jobs/test_ways_out.py::test_a_page_is_served_at_another_port",
    "{}: port {} cannot be used; choose one": ("tests/metrics/test_page_server.py::test_a_port_that_there_is_not_is_refused"),
    "host: it is empty; leave it out for this machine": (
        "tests/metrics/test_page_server.py::test_no_host_does_not_mean_all_of_them"
    ),
    "names: {} is no name of a host; write it as": (
        "tests/metrics/test_page_server.py::test_what_is_no_name_of_a_host_is_refused"
    ),
    "{}: {}. Rows change and go: set its property": APPEND_ONLY,
    "{}. {} and start the query again: it goes on": OUTAGE,
    "{}. {} and start again": STORAGE,
    "{} ({}). Check its host and port, and start": (
        "integration/test_postgres_outages.py::test_a_table_is_prepared_through_an_outage_too"
    ),
    "a row cannot be in table {}: {}; with on_error": (
        "integration/test_postgres_refusals.py::test_each_way_out_that_the_error_names"
    ),
    "postgres: the address cannot be read (it is": (
        "tests/sinks/test_database_addresses.py::test_the_ways_of_writing_an_address_that_the_error_names"
    ),
    "checkpoint: {} is at {}, and {} has batch": SPARKS_SINK,
    "{} ({}, retry_s = {}). Start the query again": (
        "integration/test_postgres_outages.py::test_when_the_time_is_over_the_query_stops_and_says_how_long_it_tried"
    ),
    "kind: the sink {} is of type {}: let it": SEAM,
    "{}.kind: the format {} is of type {}: give it": SEAM,
    "{}kind: no installed package has a {} {}, there": SEAM,
    "{}kind: {} is a {}: let its entry point name a": SEAM,
    "by: {} is no time that passes, of a": DRIVER,
    "timestamp: {} has no timestamps; make the": DRIVER,
    "row: {} is no dict of columns; delete(…)": DRIVER,
    "{}settings.{}: {} needs it; give it a value": SEAM,
    "sink: a {} is no TableSink: let it inherit": "tests/sinks/test_own_sink.py::test_a_sink_that_is_none_is_refused",
    "{} cannot be removed: {}; remove it as its": (
        "tests/checkpoint/test_orphaned_indexes.py::test_an_index_of_a_checkpoint_that_is_gone_is_removed"
    ),
    "events: a batch DataFrame is no stream; read": BUILDING,
    "events: rows of this stream are not final when": BUILDING,
    "events: {} is a column of the events and of": BUILDING,
    "events: {} is a table, whose rows change, and": BUILDING,
    "events_name: these events are called {}; leave": BUILDING,
    "table: {} is deployed in stages, so that a part": (
        "tests/analysis/test_enrich.py::test_a_table_that_is_deployed_in_stages_is_refused"
    ),
    "path: {} has events, and no changes of a table": BUILDING,
    "make it with table.enrich(events, on=…)": ("tests/api/test_enrich.py::test_what_cannot_be_enriched_is_refused_by_name"),
    "key: events have no key that a {} could write": BUILDING,
    "{}: these are events, and {} keeps rows by a key": BUILDING,
}
"""The tests that go the ways out, by the beginnings of messages, with ``{}`` for what is filled in."""

IMPERATIVES = (
    "add ask begin build call cast change choose compare configure copy create delete drop end free get give go group "
    "install keep leave let make map move name open order pass pick put read rebuild remove rename repeat replace restart "
    "restore run say see select set split start stop take try unset update upgrade use wait write"
)
"""The verbs that ways out begin with."""

_WAY_OUT = re.compile(
    rf"(?:^|[;:.(,]\s+|\b(?:or|and|else|then|first)\s+)(?:or\s+|and\s+|either\s+|else\s+)?(?:{IMPERATIVES.replace(' ', '|')})\b"
    "|with on_error=",
    re.IGNORECASE,
)


def messages() -> dict[str, str]:
    """Messages that name a way out, with ``{}`` for what is filled in, and the places that raise them."""
    return {message.text: message.place for message in raised() if _WAY_OUT.search(message.text)}


def test_every_message_that_names_a_way_out_is_in_the_table() -> None:
    """A new one needs an entry, and a test; one that is gone needs none any more."""
    said = messages()
    found = {text: [beginning for beginning in WAYS if text.startswith(beginning)] for text in said}
    assert {said[text]: text for text, beginnings in found.items() if len(beginnings) != 1} == {}
    assert set(WAYS) == {beginning for beginnings in found.values() for beginning in beginnings}


def test_the_tests_that_go_the_ways_out_are_there() -> None:
    for way in set(WAYS.values()):
        file, _, name = way.partition("::")
        defined = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        assert name in defined, way


def test_what_a_way_out_is() -> None:
    for text in (
        "x: {} is none; give another",
        "no records. Start when it has",
        "it is taken, or choose one",
        "rows; with on_error=x",
    ):
        assert _WAY_OUT.search(text), text
    for text in ("x: {} is none of those that are given", "the name is used", "{} does not parse: {}"):
        assert not _WAY_OUT.search(text), text
