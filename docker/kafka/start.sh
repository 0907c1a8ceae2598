# KAFKA_LOG_DIRS=/data becomes log.dirs=/data in the broker's properties; then format once, and run.
set -eu
conf=/tmp/server.properties
env | sed -n 's/^KAFKA_//p' | while IFS='=' read -r name value; do
  printf '%s=%s\n' "$(printf %s "$name" | tr 'A-Z_' 'a-z.')" "$value"
done >"$conf"
log=-Dorg.slf4j.simpleLogger.defaultLogLevel=warn
java -Xmx128m $log -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format --ignore-formatted \
  -t "${CLUSTER_ID:-fkjoinKafkaCluster0001A}" -c "$conf"
exec java -Xms256m -Xmx${HEAP:-512m} $log -cp '/opt/kafka/libs/*' kafka.Kafka "$conf"
