"""Episodes on disk: LeRobotDataset v3, written safely in the background and read from files of many tools."""
